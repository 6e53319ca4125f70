/*
 * Proves: --races names the lines of accesses to long blocks by threads of different nodes that no
 * synchronisation orders, and is silent about those that are ordered. The argument chooses; the lines that
 * the report must name are marked.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BYTES = 1 << 20, ROUNDS = 40, THREADS = 4 };

struct board {
    char before[8192];
    volatile uint32_t word;
    char between[8192];
    volatile uint32_t counter;
    volatile uint32_t own[THREADS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t start;
static struct board *board;

/* Time passes without synchronisation. The loop counts, so it is not taken for one that waits. */
static void compute(void)
{
    for (int i = 0; i < 2000000; i++)
        __asm__ volatile("" : "+r"(i));
}

static void write_word(struct board *here, uint32_t value)
{
    here->word = value; /* HERE: store */
}

static uint32_t read_word(struct board *here)
{
    return here->word; /* HERE: load */
}

/* In each round both threads have begun before they store for the second time: a thread that is woken at a
 * barrier reads the barrier's memory, and that orders it after what the other one has done until then. */
static void *write_both(void *argument)
{
    struct board *here = board;
    uint32_t number = (uint32_t)(uintptr_t)argument;
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        pthread_barrier_wait(&start);
        for (uint32_t turn = 0; turn < 3; turn++) {
            write_word(here, (round * 3 + turn) * THREADS + number);
            compute();
        }
    }
    return NULL;
}

static void *write_and_read(void *argument)
{
    struct board *here = board;
    uint32_t number = (uint32_t)(uintptr_t)argument, sum = 0;
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        pthread_barrier_wait(&start);
        for (uint32_t turn = 0; turn < 3; turn++) {
            if (number == 0)
                write_word(here, round * 3 + turn);
            else
                sum += read_word(here);
            compute();
        }
    }
    return (void *)(uintptr_t)(sum & 0);
}

static void *in_order(void *argument)
{
    uint32_t number = (uint32_t)(uintptr_t)argument;
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        pthread_mutex_lock(&lock);
        board->counter += 1;
        pthread_mutex_unlock(&lock);
        board->own[number] += round;
        pthread_barrier_wait(&start);
        if (round % THREADS == number)
            write_word(board, round);
        pthread_barrier_wait(&start);
        if (read_word(board) != round)
            return "a wrong word";
        pthread_barrier_wait(&start);
    }
    return NULL;
}

int main(int count, char **arguments)
{
    const char *how = count > 1 ? arguments[1] : "";
    int in_turn = !strcmp(how, "in-order");
    void *(*work)(void *) = in_turn ? in_order : !strcmp(how, "read") ? write_and_read : write_both;
    uintptr_t threads = in_turn ? THREADS : 2;
    pthread_t all[THREADS];
    board = calloc(1, BYTES);
    pthread_barrier_init(&start, NULL, (unsigned)threads);
    for (uintptr_t number = 0; number < threads; number++)
        pthread_create(&all[number], NULL, work, (void *)number);
    for (uintptr_t number = 0; number < threads; number++) {
        void *wrong = NULL;
        pthread_join(all[number], &wrong);
        if (wrong)
            printf("thread %d: %s\n", (int)number, (char *)wrong);
    }
    printf("counter %u\n", board->counter);
    free(board);
    return 0;
}
