/*
 * Cancellation, signals for threads, and attributes, in a program that was not built for Hiroba. Prints the
 * same wherever its threads run.
 *
 *     cc -O2 -pthread -o cancel executable_cancel.c && hiroba run --pthread -n 2 ./cancel
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { WAYS = 6 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
static sem_t no_posts, ready;
static int cleaned, gave_mutex_back;
static volatile sig_atomic_t signals_seen;
static pthread_t waits_for_ever;

static void expect(int holds, const char *what)
{
    if (!holds) {
        printf("wrong: %s\n", what);
        exit(1);
    }
}

static void clean(void *mutex_held)
{
    if (mutex_held) {
        gave_mutex_back++;
        pthread_mutex_unlock(mutex_held);
    }
    __atomic_add_fetch(&cleaned, 1, __ATOMIC_SEQ_CST);
}

/* Waits in one of the ways in which a thread can be cancelled. */
static void *wait_in(void *way)
{
    void *held = (long)way == 0 ? &mutex : NULL;
    if (held)
        pthread_mutex_lock(&mutex);
    pthread_cleanup_push(clean, held);
    sem_post(&ready);
    switch ((long)way) {
    case 0:
        for (;;)
            pthread_cond_wait(&never, &mutex);
    case 1:
        for (;;)
            sem_wait(&no_posts);
    case 2:
        for (;;)
            sleep(100);
    case 3:
        pthread_join(waits_for_ever, NULL);
        break;
    case 4:
        for (;;)
            pthread_testcancel();
    case 5: {
        struct timespec far = {.tv_sec = time(NULL) + 1000};
        for (;;)
            sem_timedwait(&no_posts, &far);
    }
    }
    pthread_cleanup_pop(0);
    return NULL;
}

static void *refuse(void *nothing)
{
    int before;
    expect(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before) == 0 && before == PTHREAD_CANCEL_ENABLE, "state");
    sem_post(&ready);
    for (int i = 0; i < 5; i++)
        usleep(10000);
    pthread_testcancel();
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
    expect(before == PTHREAD_CANCEL_DISABLE, "state before");
    return nothing;
}

static pthread_cond_t given = PTHREAD_COND_INITIALIZER;
static int tokens, awaiting_token;

static void *take_token(void *nothing)
{
    pthread_mutex_lock(&mutex);
    pthread_cleanup_push(clean, &mutex);
    awaiting_token++;
    while (tokens == 0)
        pthread_cond_wait(&given, &mutex);
    tokens--;
    pthread_cleanup_pop(0);
    pthread_mutex_unlock(&mutex);
    return nothing;
}

/* A thread that is signalled and cancelled at once may not keep the signal from another one. */
static void cancel_signalled(void)
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        pthread_create(&threads[i], NULL, take_token, NULL);
        for (int is_waiting = 0; !is_waiting; usleep(1000)) {
            pthread_mutex_lock(&mutex);
            is_waiting = awaiting_token > i;
            pthread_mutex_unlock(&mutex);
        }
    }
    pthread_mutex_lock(&mutex);
    tokens = 1;
    pthread_cond_signal(&given);
    pthread_cancel(threads[0]);
    pthread_mutex_unlock(&mutex);
    void *result;
    pthread_join(threads[0], &result);
    if (result != PTHREAD_CANCELED) { /* it took the token before it was cancelled */
        pthread_mutex_lock(&mutex);
        tokens = 1;
        pthread_cond_signal(&given);
        pthread_mutex_unlock(&mutex);
    }
    pthread_join(threads[1], NULL);
    puts("a cancelled thread takes no signal with it");
}

static void count_signal(int number)
{
    (void)number;
    signals_seen++;
}

static void *await_signals(void *count)
{
    sem_post(&ready);
    while (signals_seen < (long)count)
        usleep(1000);
    return NULL;
}

int main(void)
{
    sem_init(&no_posts, 0, 0);
    sem_init(&ready, 0, 0);
    pthread_create(&waits_for_ever, NULL, wait_in, (void *)1);
    sem_wait(&ready);
    pthread_t threads[WAYS];
    for (long way = 0; way < WAYS; way++) {
        pthread_create(&threads[way], NULL, wait_in, (void *)way);
        sem_wait(&ready);
    }
    for (int way = 0; way < WAYS; way++) {
        void *result = NULL;
        expect(pthread_cancel(threads[way]) == 0, "pthread_cancel");
        expect(pthread_join(threads[way], &result) == 0, "pthread_join");
        printf("way %d: %s\n", way, result == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
    }
    expect(pthread_mutex_trylock(&mutex) == 0, "the mutex is free");
    pthread_mutex_unlock(&mutex);
    printf("%d cleaned, %d gave the mutex back\n", cleaned, gave_mutex_back);
    pthread_cancel(waits_for_ever);
    pthread_join(waits_for_ever, NULL);
    cancel_signalled();

    pthread_t refusing[2];
    for (int i = 0; i < 2; i++) {
        pthread_create(&refusing[i], NULL, refuse, &cleaned);
        sem_wait(&ready);
        pthread_cancel(refusing[i]);
    }
    for (int i = 0; i < 2; i++) {
        void *result;
        pthread_join(refusing[i], &result);
        printf("refusing %d: %s\n", i, result == &cleaned ? "ended by itself" : "cancelled");
    }

    struct sigaction action = {.sa_handler = count_signal}, before;
    expect(sigaction(SIGUSR1, &action, NULL) == 0, "sigaction");
    expect(signal(SIGUSR2, count_signal) == SIG_DFL, "signal");
    expect(sigaction(SIGUSR1, NULL, &before) == 0 && before.sa_handler == count_signal, "what was set");
    pthread_t awaiting[3];
    for (int i = 0; i < 3; i++) {
        pthread_create(&awaiting[i], NULL, await_signals, (void *)3);
        sem_wait(&ready);
        expect(pthread_kill(awaiting[i], 0) == 0, "a thread is there");
    }
    for (int i = 0; i < 3; i++) {
        expect(pthread_kill(awaiting[i], i % 2 ? SIGUSR1 : SIGUSR2) == 0, "pthread_kill");
        while (signals_seen <= i)
            usleep(1000);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(awaiting[i], NULL);
    printf("%d signals\n", (int)signals_seen);

    pthread_attr_t attributes;
    void *stack;
    size_t bytes;
    char here;
    expect(pthread_getattr_np(pthread_self(), &attributes) == 0, "pthread_getattr_np");
    pthread_attr_getstack(&attributes, &stack, &bytes);
    expect(&here >= (char *)stack && &here < (char *)stack + bytes, "the stack is where it is said to be");
    puts("threads end and are told");
    return 0;
}
