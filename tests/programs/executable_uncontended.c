/* Objects that one thread uses again and again while a thread of another node waits for something else: a
   mutex that protects data in a long block, a reader-writer lock, a spin lock, and a semaphore. */
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

enum { PAGES = 64, PAGE_BYTES = 4096 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t shared = PTHREAD_RWLOCK_INITIALIZER;
static pthread_spinlock_t spin;
static sem_t semaphore, over;
static unsigned char *data;

static void *other(void *expected) {
    sem_wait(&over);
    pthread_mutex_lock(&mutex);
    long sum = 0;
    for (int page = 0; page < PAGES; page++)
        sum += data[page * PAGE_BYTES];
    pthread_mutex_unlock(&mutex);
    return sum == *(long *)expected ? NULL : expected;
}

int main(int count, char **arguments) {
    int rounds = count > 1 ? atoi(arguments[1]) : 10;
    long expected = 0;
    data = calloc(PAGES, PAGE_BYTES);
    pthread_spin_init(&spin, PTHREAD_PROCESS_PRIVATE);
    sem_init(&semaphore, 0, 0);
    sem_init(&over, 0, 0);
    pthread_t thread;
    if (pthread_create(&thread, NULL, other, &expected))
        return 1;
    for (int round = 0; round < rounds; round++) {
        pthread_mutex_lock(&mutex);
        data[round % PAGES * PAGE_BYTES]++;
        pthread_mutex_unlock(&mutex);
        pthread_rwlock_wrlock(&shared);
        pthread_rwlock_unlock(&shared);
        pthread_rwlock_rdlock(&shared);
        pthread_rwlock_unlock(&shared);
        pthread_spin_lock(&spin);
        pthread_spin_unlock(&spin);
        sem_post(&semaphore);
        sem_wait(&semaphore);
    }
    for (int page = 0; page < PAGES; page++)
        expected += data[page * PAGE_BYTES];
    sem_post(&over);
    void *wrong = NULL;
    pthread_join(thread, &wrong);
    printf("%s\n", wrong ? "a store was lost" : "as it should be");
    return wrong != NULL;
}
