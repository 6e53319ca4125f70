/* Producers and consumers with a bounded queue, condition variables, a semaphore, a barrier and a read-write
 * lock.
 * Usage: pipeline [ITEMS [THREADS]]. The sums do not depend on the order of threads. */
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROOM = 16 };

static long items = 2000;
static int pairs = 2;
static struct {
    pthread_mutex_t lock;
    pthread_cond_t filled, emptied;
    long slots[ROOM];
    int used, first;
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .filled = PTHREAD_COND_INITIALIZER, .emptied = PTHREAD_COND_INITIALIZER};
static pthread_barrier_t start;
static pthread_rwlock_t table_lock = PTHREAD_RWLOCK_INITIALIZER;
static long table[8];
static sem_t finished;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int initialised;
static pthread_key_t key;
static long destroyed;
static pthread_mutex_t count_lock;

static void on_end(void *value)
{
    pthread_mutex_lock(&count_lock);
    destroyed += *(long *)value;
    pthread_mutex_unlock(&count_lock);
    free(value);
}

static void initialise(void)
{
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&count_lock, &recursive);
    pthread_key_create(&key, on_end);
    initialised++;
}

static void mark(void)
{
    long *one = malloc(sizeof *one);
    *one = 1;
    pthread_setspecific(key, one);
}

static void *produce(void *argument)
{
    long first = (long)argument;
    pthread_once(&once, initialise);
    mark();
    pthread_barrier_wait(&start);
    for (long item = first; item < items; item += pairs) {
        pthread_mutex_lock(&queue.lock);
        while (queue.used == ROOM)
            pthread_cond_wait(&queue.emptied, &queue.lock);
        queue.slots[(queue.first + queue.used++) % ROOM] = item;
        pthread_cond_signal(&queue.filled);
        pthread_mutex_unlock(&queue.lock);
    }
    sem_post(&finished);
    return NULL;
}

static void *consume(void *argument)
{
    long *sum = argument;
    pthread_once(&once, initialise);
    mark();
    pthread_barrier_wait(&start);
    for (long count = 0; count < items / pairs; count++) {
        pthread_mutex_lock(&queue.lock);
        while (queue.used == 0)
            pthread_cond_wait(&queue.filled, &queue.lock);
        long item = queue.slots[queue.first];
        queue.first = (queue.first + 1) % ROOM;
        queue.used--;
        pthread_cond_signal(&queue.emptied);
        pthread_mutex_unlock(&queue.lock);
        *sum += item;
        if (count % 64 == 0) {
            pthread_rwlock_wrlock(&table_lock);
            table[count / 64 % 8]++;
            pthread_rwlock_unlock(&table_lock);
        } else if (count % 16 == 0) {
            pthread_rwlock_rdlock(&table_lock);
            long seen = table[0];
            pthread_rwlock_unlock(&table_lock);
            if (seen < 0)
                pthread_exit(NULL);
        }
    }
    pthread_exit((void *)sum);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        items = atol(argv[1]);
    if (argc > 2)
        pairs = atoi(argv[2]);
    items = items / pairs * pairs;
    pthread_t threads[64];
    long sums[32] = {0}, total = 0, marks = 0;
    pthread_barrier_init(&start, NULL, 2 * pairs);
    sem_init(&finished, 0, 0);
    for (long i = 0; i < pairs; i++) {
        pthread_create(&threads[2 * i], NULL, produce, (void *)i);
        pthread_create(&threads[2 * i + 1], NULL, consume, &sums[i]);
    }
    for (int i = 0; i < pairs; i++)
        sem_wait(&finished);
    for (int i = 0; i < 2 * pairs; i++) {
        void *result;
        pthread_join(threads[i], &result);
        if (i % 2 == 1)
            total += *(long *)result;
    }
    for (int i = 0; i < 8; i++)
        marks += table[i];
    printf("%ld items, sum %ld, initialised %d time, %ld destructors\n", items, total, initialised, destroyed);
    return total != items * (items - 1) / 2 || marks != pairs * ((items / pairs + 63) / 64);
}
