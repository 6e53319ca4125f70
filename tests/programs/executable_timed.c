/*
 * Waits with a deadline, in a program that was not built for Hiroba: each kind ends with ETIMEDOUT after its
 * time, ends earlier if another thread wakes it, and loses no wake-up to a thread whose time is over.
 *
 *     cc -O2 -pthread -o timed executable_timed.c && hiroba run --pthread -n 2 ./timed
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>
#include <time.h>

enum { SHORT_MS = 15, LONG_MS = 20000, ROUNDS = 40 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, guard = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER, monotonic_cond, taken = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t read_locked = PTHREAD_RWLOCK_INITIALIZER, write_locked = PTHREAD_RWLOCK_INITIALIZER;
static sem_t semaphore, sleeping;
static mtx_t c11_mutex, c11_guard;
static cnd_t c11_cond;
static pthread_t sleeper;

static void expect(int holds, const char *what)
{
    if (!holds) {
        printf("wrong: %s\n", what);
        fflush(stdout);
        _Exit(1);
    }
}

static struct timespec in_ms(clockid_t clock, long ms)
{
    struct timespec time;
    clock_gettime(clock, &time);
    time.tv_nsec += ms % 1000 * 1000000;
    time.tv_sec += ms / 1000 + time.tv_nsec / 1000000000;
    time.tv_nsec %= 1000000000;
    return time;
}

/* One kind of wait on one clock; returns 0 or an error number. */
typedef struct {
    const char *name;
    clockid_t clock;
    int (*wait)(const struct timespec *until);
    void (*wake)(void); /* lets another thread's wait end early */
} way;

static int of_errno(int result)
{
    return result ? errno : 0;
}

static int of_c11(int result)
{
    return result == thrd_timedout ? ETIMEDOUT : result == thrd_success ? 0 : EINVAL;
}

static int is_signalled;

static int in_cond(pthread_cond_t *of, int clock, const struct timespec *until)
{
    int error = 0;
    pthread_mutex_lock(&guard);
    while (!is_signalled && error == 0)
        error = clock < 0 ? pthread_cond_timedwait(of, &guard, until)
                          : pthread_cond_clockwait(of, &guard, clock, until);
    is_signalled = 0;
    pthread_mutex_unlock(&guard);
    return error;
}

static void signal_cond(pthread_cond_t *of)
{
    pthread_mutex_lock(&guard);
    is_signalled = 1;
    pthread_cond_signal(of);
    pthread_mutex_unlock(&guard);
}

static int cond_timed(const struct timespec *until) { return in_cond(&cond, -1, until); }
static int cond_monotonic(const struct timespec *until) { return in_cond(&monotonic_cond, -1, until); }
static int cond_clock(const struct timespec *until) { return in_cond(&cond, CLOCK_MONOTONIC, until); }
static void wake_cond(void) { signal_cond(&cond); }
static void wake_monotonic(void) { signal_cond(&monotonic_cond); }

static int cond_c11(const struct timespec *until)
{
    int error = 0;
    mtx_lock(&c11_guard);
    while (!is_signalled && error == 0)
        error = of_c11(cnd_timedwait(&c11_cond, &c11_guard, until));
    is_signalled = 0;
    mtx_unlock(&c11_guard);
    return error;
}

static void wake_c11(void)
{
    mtx_lock(&c11_guard);
    is_signalled = 1;
    cnd_signal(&c11_cond);
    mtx_unlock(&c11_guard);
}

static int given_back(int error, pthread_mutex_t *of)
{
    if (error == 0)
        pthread_mutex_unlock(of);
    return error;
}

static int mutex_timed(const struct timespec *until)
{
    return given_back(pthread_mutex_timedlock(&mutex, until), &mutex);
}
static int mutex_clock(const struct timespec *until)
{
    return given_back(pthread_mutex_clocklock(&mutex, CLOCK_MONOTONIC, until), &mutex);
}
static void free_mutex(void) { pthread_mutex_unlock(&mutex); }
static int mutex_c11(const struct timespec *until)
{
    int error = of_c11(mtx_timedlock(&c11_mutex, until));
    if (error == 0)
        mtx_unlock(&c11_mutex);
    return error;
}
static void free_c11(void) { mtx_unlock(&c11_mutex); }

static int released(int error, pthread_rwlock_t *lock)
{
    if (error == 0)
        pthread_rwlock_unlock(lock);
    return error;
}

static int read_timed(const struct timespec *until)
{
    return released(pthread_rwlock_timedrdlock(&write_locked, until), &write_locked);
}
static int read_clock(const struct timespec *until)
{
    return released(pthread_rwlock_clockrdlock(&write_locked, CLOCK_MONOTONIC, until), &write_locked);
}
static int write_timed(const struct timespec *until)
{
    return released(pthread_rwlock_timedwrlock(&read_locked, until), &read_locked);
}
static int write_clock(const struct timespec *until)
{
    return released(pthread_rwlock_clockwrlock(&read_locked, CLOCK_MONOTONIC, until), &read_locked);
}
static void free_writer(void) { pthread_rwlock_unlock(&write_locked); }
static void free_reader(void) { pthread_rwlock_unlock(&read_locked); }

static int sem_timed(const struct timespec *until) { return of_errno(sem_timedwait(&semaphore, until)); }
static int sem_clock(const struct timespec *until)
{
    return of_errno(sem_clockwait(&semaphore, CLOCK_MONOTONIC, until));
}
static void post(void) { sem_post(&semaphore); }

static int join_timed(const struct timespec *until) { return pthread_timedjoin_np(sleeper, NULL, until); }
static int join_clock(const struct timespec *until)
{
    return pthread_clockjoin_np(sleeper, NULL, CLOCK_MONOTONIC, until);
}
static void end_sleeper(void) { sem_post(&sleeping); }

static void *sleep_until_posted(void *nothing)
{
    sem_wait(&sleeping);
    return nothing;
}

static const way ways[] = {
    {"pthread_cond_timedwait", CLOCK_REALTIME, cond_timed, wake_cond},
    {"pthread_cond_timedwait, monotonic", CLOCK_MONOTONIC, cond_monotonic, wake_monotonic},
    {"pthread_cond_clockwait", CLOCK_MONOTONIC, cond_clock, wake_cond},
    {"cnd_timedwait", CLOCK_REALTIME, cond_c11, wake_c11},
    {"pthread_mutex_timedlock", CLOCK_REALTIME, mutex_timed, free_mutex},
    {"pthread_mutex_clocklock", CLOCK_MONOTONIC, mutex_clock, free_mutex},
    {"mtx_timedlock", CLOCK_REALTIME, mutex_c11, free_c11},
    {"pthread_rwlock_timedrdlock", CLOCK_REALTIME, read_timed, free_writer},
    {"pthread_rwlock_clockrdlock", CLOCK_MONOTONIC, read_clock, free_writer},
    {"pthread_rwlock_timedwrlock", CLOCK_REALTIME, write_timed, free_reader},
    {"pthread_rwlock_clockwrlock", CLOCK_MONOTONIC, write_clock, free_reader},
    {"sem_timedwait", CLOCK_REALTIME, sem_timed, post},
    {"sem_clockwait", CLOCK_MONOTONIC, sem_clock, post},
    {"pthread_timedjoin_np", CLOCK_REALTIME, join_timed, end_sleeper},
    {"pthread_clockjoin_np", CLOCK_MONOTONIC, join_clock, end_sleeper},
};

typedef struct {
    const way *of;
    struct timespec until;
    int error;
} waiting;

static void *wait_once(void *argument)
{
    waiting *it = argument;
    it->error = it->of->wait(&it->until);
    return NULL;
}

static void hold(const way *of)
{
    if (of->wake == free_mutex)
        pthread_mutex_lock(&mutex);
    if (of->wake == free_c11)
        mtx_lock(&c11_mutex);
    if (of->wake == free_writer)
        pthread_rwlock_wrlock(&write_locked);
    if (of->wake == free_reader)
        pthread_rwlock_rdlock(&read_locked);
    if (of->wake == end_sleeper)
        pthread_create(&sleeper, NULL, sleep_until_posted, NULL);
}

/* main holds what a thread, of another node if there is one, waits for. */
static void check(const way *of)
{
    pthread_t thread;
    struct timespec begun, ended;
    hold(of);
    clock_gettime(CLOCK_MONOTONIC, &begun);
    waiting it = {of, in_ms(of->clock, SHORT_MS), -1};
    pthread_create(&thread, NULL, wait_once, &it);
    pthread_join(thread, NULL);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    const long ms = (ended.tv_sec - begun.tv_sec) * 1000 + (ended.tv_nsec - begun.tv_nsec) / 1000000;
    printf("%s: %s", of->name, it.error == ETIMEDOUT && ms >= SHORT_MS - 2 ? "timed out" : "WRONG");
    it.until = in_ms(of->clock, 0);
    it.until.tv_sec--;
    pthread_create(&thread, NULL, wait_once, &it);
    pthread_join(thread, NULL);
    printf(", %s in the past", it.error == ETIMEDOUT ? "too" : "WRONG");
    if (of->wake != end_sleeper) { /* which the C library does not check there */
        it.until.tv_nsec = 1000000000;
        pthread_create(&thread, NULL, wait_once, &it);
        pthread_join(thread, NULL);
        printf(", %s", it.error == EINVAL ? "invalid" : "WRONG");
    }
    it.until = in_ms(of->clock, LONG_MS);
    pthread_create(&thread, NULL, wait_once, &it);
    thrd_sleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    of->wake();
    pthread_join(thread, NULL);
    printf(", %s\n", it.error == 0 ? "woken in time" : "WRONG");
}

static int tokens, rounds_over, waiters;

static void *take_with_deadline(void *argument)
{
    unsigned seed = (unsigned)(long)argument;
    pthread_mutex_lock(&guard);
    for (int round = 0; round < ROUNDS; round++) {
        waiters++;
        pthread_cond_broadcast(&taken);
        while (rounds_over == round) {
            struct timespec until = in_ms(CLOCK_REALTIME, 0);
            until.tv_nsec += rand_r(&seed) % 2000000;
            until.tv_sec += until.tv_nsec / 1000000000;
            until.tv_nsec %= 1000000000;
            /* A thread whose time is over does not take the token: the signal belongs to the other one. */
            if (pthread_cond_timedwait(&cond, &guard, &until) == 0 && tokens > 0) {
                tokens--;
                pthread_cond_broadcast(&taken);
            }
        }
    }
    pthread_mutex_unlock(&guard);
    return NULL;
}

static void *take_at_leisure(void *nothing)
{
    pthread_mutex_lock(&guard);
    for (int round = 0; round < ROUNDS; round++) {
        waiters++;
        pthread_cond_broadcast(&taken);
        while (rounds_over == round) {
            pthread_cond_wait(&cond, &guard);
            if (tokens > 0) {
                tokens--;
                pthread_cond_broadcast(&taken);
            }
        }
    }
    pthread_mutex_unlock(&guard);
    return nothing;
}

/* One signal a round, at about the time at which one of the two waiters gives up. */
static void check_signals_against_deadlines(void)
{
    pthread_t threads[2];
    pthread_create(&threads[0], NULL, take_with_deadline, (void *)1);
    pthread_create(&threads[1], NULL, take_at_leisure, NULL);
    pthread_mutex_lock(&guard);
    for (int round = 0; round < ROUNDS; round++) {
        while (waiters < 2)
            pthread_cond_wait(&taken, &guard);
        waiters = 0;
        pthread_mutex_unlock(&guard);
        thrd_sleep(&(struct timespec){.tv_nsec = 1000000 + round * 20000}, NULL);
        pthread_mutex_lock(&guard);
        tokens = 1;
        pthread_cond_signal(&cond);
        struct timespec until = in_ms(CLOCK_REALTIME, 20000);
        int error = 0;
        while (tokens > 0 && error == 0)
            error = pthread_cond_timedwait(&taken, &guard, &until);
        expect(error == 0, "a signal was lost");
        rounds_over++;
        pthread_cond_broadcast(&cond);
    }
    pthread_mutex_unlock(&guard);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    puts("no signal is lost to a thread whose time is over");
}

int main(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&monotonic_cond, &attributes);
    sem_init(&semaphore, 0, 0);
    sem_init(&sleeping, 0, 0);
    mtx_init(&c11_mutex, mtx_timed);
    mtx_init(&c11_guard, mtx_plain);
    cnd_init(&c11_cond);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        check(&ways[i]);
    check_signals_against_deadlines();
    return 0;
}
