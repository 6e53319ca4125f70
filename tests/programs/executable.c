/*
 * Proves: a program of POSIX threads that was not built for Hiroba behaves under `hiroba run --pthread` as it
 * does natively. The stock compiler builds it. The first argument names the case; the output of a case
 * depends neither on time nor on the number of nodes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 4 };

static pthread_t threads[THREADS];

static void start_all(void *(*work)(void *)) {
    for (intptr_t number = 0; number < THREADS; number++)
        pthread_create(&threads[number], NULL, work, (void *)number);
}

static intptr_t join_all(void) {
    intptr_t sum = 0;
    for (int number = 0; number < THREADS; number++) {
        void *result;
        pthread_join(threads[number], &result);
        sum += (intptr_t)result;
    }
    return sum;
}

static void pass_milliseconds(long milliseconds) {
    struct timespec span = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&span, NULL);
}

static struct timespec in_milliseconds(long milliseconds) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_nsec += milliseconds * 1000000;
    at.tv_sec += at.tv_nsec / 1000000000;
    at.tv_nsec %= 1000000000;
    return at;
}

static void *sleep_for_ever(void *argument) {
    for (;;)
        pass_milliseconds(1000);
    return argument;
}

/* --- memory: statics, the heap, other threads' stacks, anonymous mappings --- */

static long counts[THREADS];

static void *write_everywhere(void *argument) {
    long **places = argument;
    for (int place = 0; place < 4; place++)
        *places[place] += 1;
    return strdup("from a thread");
}

static int check_memory(void) {
    long on_the_stack = 0, *on_the_heap = calloc(1, sizeof(long));
    long *mapped = mmap(NULL, 100000, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long *places[] = {&counts[1], &on_the_stack, on_the_heap, mapped};
    char *text;
    for (int number = 0; number < THREADS; number++) {
        pthread_create(&threads[0], NULL, write_everywhere, places);
        pthread_join(threads[0], (void **)&text);
        printf("%ld %ld %ld %ld %s\n", counts[1], on_the_stack, *on_the_heap, *mapped, text);
        free(text);
    }
    free(on_the_heap);
    return munmap(mapped, 100000);
}

/* --- objects of pthreads --- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t recursive = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_mutex_t checked = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_spinlock_t spin;
static pthread_barrier_t barrier;
static sem_t semaphore;
static pthread_key_t key;
static long turn, total, written, spun, destroyed;

static void say_once(void) {
    printf("once\n");
}

static void destroy(void *value) {
    pthread_mutex_lock(&mutex);
    destroyed += (intptr_t)value;
    pthread_mutex_unlock(&mutex);
}

static void *use_all(void *argument) {
    intptr_t number = (intptr_t)argument;
    pthread_once(&once, say_once);
    pthread_setspecific(key, (void *)(number + 1));
    for (int round = 0; round < 50; round++) {
        pthread_mutex_lock(&recursive);
        pthread_mutex_lock(&recursive);
        total++;
        pthread_mutex_unlock(&recursive);
        pthread_mutex_unlock(&recursive);
        pthread_rwlock_wrlock(&rwlock);
        written++;
        pthread_rwlock_unlock(&rwlock);
        pthread_spin_lock(&spin);
        spun++;
        pthread_spin_unlock(&spin);
    }
    pthread_mutex_lock(&mutex);
    while (turn != number)
        pthread_cond_wait(&condition, &mutex);
    turn++;
    pthread_cond_broadcast(&condition);
    pthread_mutex_unlock(&mutex);
    intptr_t is_serial = pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD;
    sem_post(&semaphore);
    return (void *)is_serial;
}

static int check_objects(void) {
    pthread_spin_init(&spin, PTHREAD_PROCESS_PRIVATE);
    pthread_barrier_init(&barrier, NULL, THREADS);
    sem_init(&semaphore, 0, 0);
    pthread_key_create(&key, destroy);
    start_all(use_all);
    for (int number = 0; number < THREADS; number++)
        sem_wait(&semaphore);
    long serial = join_all();
    printf("%ld %ld %ld %ld %ld %ld\n", total, written, spun, turn, serial, destroyed);
    pthread_mutex_lock(&checked);
    printf("%s, %s\n", strerror(pthread_mutex_lock(&checked)), strerror(sem_trywait(&semaphore) ? errno : 0));
    pthread_mutex_unlock(&checked);
    return 0;
}

static void *hold(void *argument) {
    pthread_mutex_lock(&mutex);
    sem_post(&semaphore);
    pass_milliseconds(200);
    pthread_mutex_unlock(&mutex);
    return argument;
}

static int check_timed_waits(void) {
    sem_init(&semaphore, 0, 0);
    pthread_create(&threads[0], NULL, hold, NULL);
    sem_wait(&semaphore);
    struct timespec at = in_milliseconds(20);
    printf("%s\n", strerror(pthread_mutex_timedlock(&mutex, &at)));
    pthread_join(threads[0], NULL);
    pthread_mutex_lock(&mutex);
    at = in_milliseconds(20);
    printf("%s\n", strerror(pthread_cond_timedwait(&condition, &mutex, &at)));
    pthread_mutex_unlock(&mutex);
    at = in_milliseconds(20);
    printf("%s\n", strerror(sem_timedwait(&semaphore, &at) ? errno : 0));
    return 0;
}

/* --- atomics and flags --- */

static long atomic;
static volatile int flag;

static void *add(void *argument) {
    for (int round = 0; round < 2000; round++)
        __atomic_fetch_add(&atomic, 1, __ATOMIC_SEQ_CST);
    return argument;
}

static void *raise_flag(void *argument) {
    pass_milliseconds(20);
    flag = 1;
    return argument;
}

static void *await_flag(void *argument) {
    while (!flag)
        ;
    return argument;
}

static int check_atomics(void) {
    start_all(add);
    join_all();
    printf("%ld\n", atomic);
    pthread_create(&threads[0], NULL, await_flag, (void *)1);
    pthread_create(&threads[1], NULL, raise_flag, (void *)2);
    threads[2] = threads[3] = 0;
    void *first, *second;
    pthread_join(threads[0], &first);
    pthread_join(threads[1], &second);
    printf("%d %d\n", (int)(intptr_t)first, (int)(intptr_t)second);
    return 0;
}

/* --- the ends of a process --- */

static void say_the_end(void) {
    printf("the end\n");
}

static void *exit_with(void *argument) {
    if (argument == NULL)
        sleep_for_ever(NULL);
    exit((int)(intptr_t)argument);
}

/* Not for ever, as far as the compiler knows. */
static volatile int depth_max = 1 << 30;

static __attribute__((noinline)) int deep(int depth)
{
    volatile char frame[4096];
    frame[depth % 4096] = (char)depth;
    return depth < depth_max ? deep(depth + 1) + frame[(depth + 1) % 4096] : 0;
}

static void *overflow(void *nothing)
{
    return deep(0) ? NULL : nothing;
}

/* A call that no program makes brings the runtime into an impossible state. */
static void *break_the_runtime(void *argument) {
    size_t bytes;
    void *found = dlsym(RTLD_DEFAULT, "hiroba_long_memory");
    if (found)
        ((size_t(*)(int, size_t *))found)(9999, &bytes);
    return argument;
}

static void *crash(void *argument) {
    if (argument == NULL)
        sleep_for_ever(NULL);
    *(volatile int *)(intptr_t)(8 * (intptr_t)argument) = 1;
    return argument;
}

static void *exit_at_once(void *argument) {
    (void)argument;
    _exit(6);
}

static void *exit_later(void *argument) {
    (void)argument;
    pass_milliseconds(50);
    printf("later\n");
    exit(0);
}

static int check_processes(void) {
    errno = 0;
    int child = fork();
    if (child == 0)
        _exit(0);
    printf("fork: %d, %s\n", child, strerror(errno));
    fflush(stdout);
    printf("system: %d\n", WEXITSTATUS(system("exit 3")));
    FILE *pipe = popen("echo from a shell", "r");
    char line[40] = "";
    printf("popen: %s", fgets(line, sizeof line, pipe) ? line : "nothing\n");
    return pclose(pipe);
}

int main(int count, char **arguments) {
    const char *given = count > 1 ? arguments[1] : "";
    atexit(say_the_end);
    if (!strcmp(given, "memory"))
        return check_memory();
    if (!strcmp(given, "objects"))
        return check_objects();
    if (!strcmp(given, "timed"))
        return check_timed_waits();
    if (!strcmp(given, "atomics"))
        return check_atomics();
    if (!strcmp(given, "processes"))
        return check_processes();
    if (!strcmp(given, "starts"))
        return printf("status %d\n", system(arguments[2])) < 0;
    if (!strcmp(given, "processors"))
        return printf("%ld\n", sysconf(_SC_NPROCESSORS_ONLN)) < 0;
    if (!strcmp(given, "exit")) {
        /* The second thread runs on another node than main. */
        pthread_create(&threads[0], NULL, exit_with, NULL);
        pthread_create(&threads[1], NULL, exit_with, (void *)5);
        pthread_create(&threads[2], NULL, exit_with, (void *)5);
        sleep_for_ever(NULL);
    }
    if (!strcmp(given, "return")) {
        start_all(sleep_for_ever);
        return 4;
    }
    if (!strcmp(given, "main-exits")) {
        pthread_create(&threads[0], NULL, exit_later, NULL);
        pthread_detach(threads[0]);
        pthread_exit(NULL);
    }
    if (!strcmp(given, "crash")) {
        pthread_create(&threads[0], NULL, crash, (void *)1);
        pthread_join(threads[0], NULL);
    }
    if (!strcmp(given, "break-the-runtime")) {
        pthread_create(&threads[0], NULL, break_the_runtime, NULL);
        pthread_join(threads[0], NULL);
    }
    if (!strcmp(given, "overflow")) {
        pthread_create(&threads[0], NULL, overflow, NULL);
        pthread_join(threads[0], NULL);
    }
    if (!strcmp(given, "abort"))
        abort();
    if (!strcmp(given, "at-once"))
        _exit(6);
    if (!strcmp(given, "threads-at-once")) {
        pthread_create(&threads[0], NULL, exit_at_once, NULL);
        sleep_for_ever(NULL);
    }
    if (!strcmp(given, "signal"))
        raise(SIGTERM);
    return 9;
}
