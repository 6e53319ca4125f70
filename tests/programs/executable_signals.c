/*
 * Signals and the locale of the job, in a program that was not built for Hiroba: threads that wait for
 * signals to the process or to themselves, masks that threads inherit, timers, signals with a value, and
 * threads that see the locale that another one has set.
 *
 *     cc -O2 -pthread -o signals executable_signals.c && hiroba run --pthread -n 2 ./signals
 */
#define _GNU_SOURCE
#include <errno.h>
#include <locale.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

enum { THREADS = 4 };

static sigset_t waited;
static sem_t ready;
static int seen[THREADS];
static volatile sig_atomic_t handled;

static void expect(int holds, const char *what)
{
    if (!holds) {
        printf("wrong: %s\n", what);
        fflush(stdout);
        _exit(1);
    }
}

static int blocks(int signal)
{
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    return sigismember(&now, signal);
}

static void *wait_for_one(void *place)
{
    expect(blocks(SIGUSR1) && blocks(SIGTERM) && !blocks(SIGUSR2), "a thread begins with its creator's mask");
    sem_post(&ready);
    expect(sigwait(&waited, place) == 0, "sigwait");
    return NULL;
}

static void on_signal(int signal)
{
    (void)signal;
    handled++;
}

static void *time_out(void *nothing)
{
    const struct timespec time = {.tv_nsec = 10000000};
    siginfo_t info;
    expect(sigtimedwait(&waited, &info, &time) < 0 && errno == EAGAIN, "a wait for signals ends in time");
    return nothing;
}

static void *wait_with_value(void *nothing)
{
    siginfo_t info;
    sem_post(&ready);
    expect(sigwaitinfo(&waited, &info) == SIGRTMIN && info.si_value.sival_int == 17, "a signal with a value");
    return nothing;
}

static void *queue_value(void *nothing)
{
    expect(sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 17}) == 0, "sigqueue");
    return nothing;
}

/* A timer of any thread sends its signal to the process. */
static void *count_ticks(void *nothing)
{
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2};
    const struct itimerspec every = {.it_value.tv_nsec = 2000000, .it_interval.tv_nsec = 2000000};
    struct itimerspec left;
    const int before = handled;
    expect(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "timer_create");
    expect(timer_settime(timer, 0, &every, NULL) == 0, "timer_settime");
    expect(timer_gettime(timer, &left) == 0 && left.it_interval.tv_nsec == 2000000, "timer_gettime");
    while (handled < before + 3)
        usleep(1000);
    expect(timer_getoverrun(timer) >= 0 && timer_delete(timer) == 0, "timer_delete");
    return nothing;
}

/* How many characters the C library finds in two bytes: one if they are UTF-8, none in the C locale. */
static void *count_characters(void *expected)
{
    wchar_t text[4];
    const size_t count = mbstowcs(text, "\xc3\xa9", 4);
    expect(count == (size_t)(long)expected, "the locale is the job's");
    expect(!strcmp(setlocale(LC_CTYPE, NULL), (long)expected == 1 ? "C.UTF-8" : "C"), "the locale's name");
    return NULL;
}

static void *set_locale(void *name)
{
    expect(setlocale(LC_ALL, name) != NULL, "setlocale");
    return NULL;
}

static void in_all_threads(void *(*routine)(void *), void *argument, int count)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, routine, argument);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

/* Threads that are there when the locale changes. */
static pthread_barrier_t before, after;

static void *see_change(void *nothing)
{
    count_characters((void *)-1L);
    pthread_barrier_wait(&before);
    pthread_barrier_wait(&after);
    count_characters((void *)1L);
    return nothing;
}

static void check_locale(void)
{
    pthread_t threads[THREADS];
    pthread_barrier_init(&before, NULL, THREADS + 1);
    pthread_barrier_init(&after, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, see_change, NULL);
    pthread_barrier_wait(&before);
    set_locale("C.UTF-8");
    pthread_barrier_wait(&after);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    in_all_threads(count_characters, (void *)1L, THREADS);
    for (int i = 0; i < 2; i++) { /* on each of two nodes */
        in_all_threads(set_locale, "C", i + 1);
        in_all_threads(count_characters, (void *)-1L, THREADS);
        count_characters((void *)-1L);
        in_all_threads(set_locale, "C.UTF-8", i + 1);
        count_characters((void *)1L);
    }
    setlocale(LC_ALL, "C");
    puts("the locale is the job's");
}

static void in_threads(void *(*routine)(void *), int count)
{
    in_all_threads(routine, NULL, count);
}

int main(void)
{
    pthread_t threads[THREADS];
    sem_init(&ready, 0, 0);
    sigemptyset(&waited);
    sigaddset(&waited, SIGUSR1);
    sigaddset(&waited, SIGTERM);
    sigaddset(&waited, SIGRTMIN);
    pthread_sigmask(SIG_BLOCK, &waited, NULL);

    for (int i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, wait_for_one, &seen[i]);
        sem_wait(&ready);
    }
    for (int i = 0; i < THREADS; i++) {
        expect(pthread_kill(threads[i], i % 2 ? SIGUSR1 : SIGTERM) == 0, "pthread_kill");
        pthread_join(threads[i], NULL);
        printf("thread %d got %s\n", i, strsignal(seen[i]));
    }
    /* Signals to the process reach any thread that waits for them. */
    for (int i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, wait_for_one, &seen[i]);
        sem_wait(&ready);
        expect(kill(getpid(), i % 2 ? SIGTERM : SIGUSR1) == 0, "kill");
        pthread_join(threads[i], NULL);
        printf("the process got %s\n", strsignal(seen[i]));
    }
    in_threads(time_out, 2);
    pthread_create(&threads[0], NULL, wait_with_value, NULL);
    sem_wait(&ready);
    in_threads(queue_value, 1);
    pthread_join(threads[0], NULL);

    expect(sigaction(SIGUSR2, &(struct sigaction){.sa_handler = on_signal}, NULL) == 0, "sigaction");
    in_threads(count_ticks, 2);
    in_threads(count_ticks, 1);
    check_locale();
    puts("signals are the job's");
    fflush(stdout);
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    return 0;
}
