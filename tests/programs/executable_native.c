/*
 * Proves: in a job of one node an executable has the C library's own threads and objects, and all that works
 * natively works: children by fork, libraries that are loaded later, robust mutexes, asynchronous
 * cancellation, mappings at fixed addresses, files that are mapped to be written. On more nodes these are
 * refused. The argument names an end of the process.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_mutex_t recursive = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_mutex_t robust;
static sem_t begun;
static pthread_key_t key;

static void drop(void *value)
{
    printf("dropped %s\n", (char *)value);
}

static void *die_with_lock(void *nothing)
{
    pthread_setspecific(key, "by a thread");
    pthread_mutex_lock(&robust);
    return nothing;
}

static void *compute(void *nothing)
{
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    sem_post(&begun);
    for (volatile long i = 0;; i++)
        ;
    return nothing;
}

/* It is cancelled before it comes to a cancellation point, and comes to none. */
static void *refuse(void *nothing)
{
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    sem_post(&begun);
    usleep(20000);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    return nothing;
}

static void *await_nothing(void *nothing)
{
    pthread_mutex_lock(&recursive);
    sem_post(&begun);
    static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    pthread_cond_wait(&never, &recursive);
    return nothing;
}

static void run(void *(*work)(void *), int cancels)
{
    pthread_t thread;
    void *result = NULL;
    pthread_create(&thread, NULL, work, "itself");
    if (cancels) {
        sem_wait(&begun);
        pthread_cancel(thread);
    }
    pthread_join(thread, &result);
    printf("ended by %s\n", result == PTHREAD_CANCELED ? "cancellation" : (char *)result);
}

static void *spin(void *nothing)
{
    for (;;)
        sched_yield();
    return nothing;
}

static void say_the_end(void)
{
    printf("the end\n");
    fflush(stdout);
}

int main(int count, char **arguments)
{
    const char *end = count > 1 ? arguments[1] : "";
    atexit(say_the_end);
    at_quick_exit(say_the_end);
    setvbuf(stdout, NULL, _IOLBF, 0);
    sem_init(&begun, 0, 0);
    pthread_key_create(&key, drop);

    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    printf("robust: %s\n", strerror(pthread_mutex_init(&robust, &attributes)));
    run(die_with_lock, 0);
    printf("after its owner: %s\n", strerror(pthread_mutex_lock(&robust)));
    run(compute, 1);
    run(refuse, 1);
    run(await_nothing, 1);

    int child = fork(), status = 0;
    if (child == 0) {
        pthread_t thread;
        pthread_create(&thread, NULL, refuse, "child");
        pthread_join(thread, NULL);
        exit(7);
    }
    waitpid(child, &status, 0);
    printf("a child: %d\n", WEXITSTATUS(status));
    child = vfork();
    if (child == 0)
        _exit(8);
    waitpid(child, &status, 0);
    printf("another: %d\n", WEXITSTATUS(status));
    printf("dlopen: %d\n", dlopen("libm.so.6", RTLD_NOW) != NULL);
    char *fixed = mmap((void *)0x10000000, 4096, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    printf("fixed: %p\n", (void *)fixed);
    FILE *file = tmpfile();
    ftruncate(fileno(file), 4096);
    char *mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0), byte = 0;
    *mapped = 'x';
    pread(fileno(file), &byte, 1, 0);
    printf("mapped: %c\n", byte);

    pthread_t thread;
    pthread_create(&thread, NULL, spin, NULL);
    if (!strcmp(end, "quick"))
        quick_exit(3);
    if (!strcmp(end, "at-once"))
        _exit(4);
    if (!strcmp(end, "exit"))
        exit(5);
    return 6;
}
