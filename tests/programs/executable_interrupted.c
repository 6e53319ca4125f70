/*
 * Cancellation of threads that wait in calls of the kernel, in a program that was not built for Hiroba.
 * Prints the same wherever its threads run.
 *
 *     cc -O2 -pthread -o interrupted executable_interrupted.c && hiroba run --pthread -n 2 ./interrupted
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WAYS = 7, EACH = 2 };

static int from, sockets[2], cleaned;
static sem_t ready;

static void clean(void *nothing)
{
    (void)nothing;
    __atomic_add_fetch(&cleaned, 1, __ATOMIC_SEQ_CST);
}

static void *wait_in(void *way)
{
    char byte;
    pthread_cleanup_push(clean, NULL);
    sem_post(&ready);
    for (;;)
        switch ((long)way) {
        case 0:
            if (read(from, &byte, 1) < 0)
                return NULL;
            break;
        case 1:
            poll(&(struct pollfd){.fd = from, .events = POLLIN}, 1, -1);
            break;
        case 2: {
            fd_set set;
            FD_ZERO(&set);
            FD_SET(from, &set);
            select(from + 1, &set, NULL, NULL, NULL);
            break;
        }
        case 3:
            recv(sockets[0], &byte, 1, 0);
            break;
        case 4:
            pause();
            break;
        case 5: {
            sigset_t set;
            siginfo_t info;
            sigemptyset(&set);
            sigaddset(&set, SIGUSR1);
            sigwaitinfo(&set, &info);
            break;
        }
        case 6: /* it ends as soon as it may, although no call waits */
            if (write(sockets[1], "", 0) < 0)
                return NULL;
            break;
        }
    pthread_cleanup_pop(0);
    return NULL;
}

/* A call that has read something is not undone. */
static void *read_one(void *place)
{
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    sem_post(&ready);
    const ssize_t count = read(from, place, 1);
    pthread_setcancelstate(before, NULL);
    return (void *)(long)(count == 1);
}

int main(void)
{
    int ends[2];
    sigset_t blocked;
    if (pipe(ends) != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0)
        return 1;
    from = ends[0];
    sem_init(&ready, 0, 0);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    for (long way = 0; way < WAYS; way++)
        for (int i = 0; i < EACH; i++) {
            pthread_t thread;
            void *result = NULL;
            pthread_create(&thread, NULL, wait_in, (void *)way);
            sem_wait(&ready);
            if (i > 0) /* let it wait */
                usleep(20000);
            pthread_cancel(thread);
            pthread_join(thread, &result);
            printf("way %ld: %s\n", way, result == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
        }
    printf("%d cleaned\n", cleaned);
    for (int i = 0; i < EACH; i++) {
        pthread_t thread;
        void *result;
        char byte = 0;
        pthread_create(&thread, NULL, read_one, &byte);
        sem_wait(&ready);
        pthread_cancel(thread);
        usleep(5000);
        if (write(ends[1], "x", 1) != 1)
            return 1;
        pthread_join(thread, &result);
        printf("reading undisturbed: %ld, %c\n", (long)result, byte);
    }
    return 0;
}
