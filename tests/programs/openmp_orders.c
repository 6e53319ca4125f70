/* Whatever orders memory in OpenMP, for data and flags in long blocks, which Hiroba keeps under release
 * consistency. Each part prints its name if all threads have seen what they must. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A block of LONGS words is long. Words of different pages are APART. */
enum { LONGS = 1 << 16, APART = 1024, ROUNDS = 12 };

static int wrong;

static void expect(int is_right, const char *what) {
    if (!is_right) {
#pragma omp atomic
        wrong++;
        fprintf(stderr, "thread %d: %s\n", omp_get_thread_num(), what);
    }
}

static long *block(void) {
    long *words = malloc(LONGS * sizeof *words);
    if (!words)
        abort();
    memset(words, 0, LONGS * sizeof *words);
    return words;
}

/* How a thread says that its data are there, and how another one waits for that. */
typedef void say_t(long *flag, long value);
typedef void wait_t(long *flag, long value);

/* A writer that never flushes: its stores are plain ones. */
static void say_silently(long *flag, long value) { *(volatile long *)flag = value; }

static void wait_with_flushes(long *flag, long value) {
    while (*(volatile long *)flag < value) {
#pragma omp flush
    }
}

static void wait_silently(long *flag, long value) {
    while (*(volatile long *)flag < value) {
    }
}

static void say_between_flushes(long *flag, long value) {
#pragma omp flush
    *(volatile long *)flag = value;
#pragma omp flush
}

static void say_atomically(long *flag, long value) {
    /* GNU's compiler overlooks this use of it. */
    (void)value;
#pragma omp atomic write release
    *flag = value;
}

static void wait_atomically(long *flag, long value) {
    long seen;
    do {
#pragma omp atomic read acquire
        seen = *flag;
    } while (seen < value);
}

/* A thread that looks at a flag between pieces of other work: no loop waits. */
static void wait_at_work(long *flag, long value) {
    static volatile long work[64 * APART];
    long seen = 0;
    for (long turn = 0; seen < value; turn++) {
        for (int i = 0; i < 20000; i++)
            work[omp_get_thread_num() * APART] += i ^ turn;
#pragma omp atomic read acquire
        seen = *flag;
    }
}

/* A relay: each thread passes the sum of its predecessor's words on. Copies of all words are in all nodes
 * before each round. */
static void relay(const char *name, say_t *say, wait_t *wait) {
    long *data = block(), *flags = block();
#pragma omp parallel
    {
        int me = omp_get_thread_num(), threads = omp_get_num_threads();
        for (long round = 1; round <= ROUNDS; round++) {
            long sum = 0;
            for (int i = 0; i < threads * 4; i++)
                sum += data[i * APART];
            expect(sum >= 0, name);
#pragma omp barrier
            if (me > 0)
                wait(&flags[(me - 1) * APART], round);
            for (int i = 0; i < 4; i++) {
                long before = me > 0 ? ((volatile long *)data)[((me - 1) * 4 + i) * APART] : round * 100;
                expect(before == round * 100 + (me > 0 ? me - 1 : 0), name);
                ((volatile long *)data)[(me * 4 + i) * APART] = round * 100 + me;
            }
            say(&flags[me * APART], round);
#pragma omp barrier
        }
    }
    free(data);
    free(flags);
    printf("%s\n", name);
}

static void locks(void) {
    long *data = block();
    omp_lock_t lock;
    omp_init_lock(&lock);
#pragma omp parallel
    for (int i = 0; i < 50; i++) {
        omp_set_lock(&lock);
        data[0]++;
        data[40 * APART]++;
        omp_unset_lock(&lock);
#pragma omp critical(counting)
        data[50 * APART]++;
#pragma omp atomic
        data[60 * APART]++;
    }
    long all = 50L * omp_get_max_threads();
    expect(data[0] == all && data[40 * APART] == all, "locks");
    expect(data[50 * APART] == all, "critical");
    expect(data[60 * APART] == all, "atomic");
    omp_destroy_lock(&lock);
    free(data);
    printf("locks\n");
}

/* A sum that a `single nowait` has set to zero, as programs do: no barrier is between that and the first
 * thread that adds its part. Here a flag is. */
static void sums(void) {
    long *data = block(), *flag = block();
    static long sum;
#pragma omp parallel
    for (int round = 1; round <= ROUNDS; round++) {
#pragma omp single nowait
        {
            sum = 0;
            say_atomically(flag, round);
        }
#pragma omp for reduction(+ : sum)
        for (int i = 0; i < LONGS; i++) {
            if (i % APART == 0)
                wait_atomically(flag, round);
            data[i] += round;
            sum += data[i];
        }
        expect(sum == (long)round * (round + 1) / 2 * LONGS, "sum");
#pragma omp barrier
    }
    free(data);
    free(flag);
    printf("sums\n");
}

/* Static loops over the same iterations need no barrier between them. */
static void loops(void) {
    long *one = block(), *two = block();
#pragma omp parallel
    for (int round = 1; round <= ROUNDS; round++) {
#pragma omp for schedule(static) nowait
        for (int i = 0; i < LONGS; i++)
            one[i] = round + i;
#pragma omp for schedule(static) nowait
        for (int i = 0; i < LONGS; i++)
            two[i] = one[i] * 2;
#pragma omp barrier
#pragma omp for schedule(static, 7)
        for (int i = 0; i < LONGS; i++)
            expect(two[i] == 2L * (round + i), "loops");
    }
    free(one);
    free(two);
    printf("loops\n");
}

static void tasks(void) {
    long *data = block();
#pragma omp parallel
#pragma omp single
    for (int round = 1; round <= 4; round++) {
        for (int i = 0; i < 16; i++) {
#pragma omp task depend(out : data[i * APART]) firstprivate(i, round)
            for (int k = 0; k < APART; k++)
                data[i * APART + k] = round + k;
#pragma omp task depend(inout : data[i * APART]) firstprivate(i)
            for (int k = 0; k < APART; k++)
                data[i * APART + k] *= 3;
        }
#pragma omp taskwait
        for (int i = 0; i < 16 * APART; i++)
            expect(data[i] == 3L * (round + i % APART), "tasks");
    }
    free(data);
    printf("tasks\n");
}

static void chain(void) {
    enum { STEPS = 48 };
    long *data = block();
    data[0] = 1;
#pragma omp parallel for ordered(1) schedule(static, 1)
    for (int i = 1; i < STEPS; i++) {
#pragma omp ordered depend(sink : i - 1)
        data[i * APART] = data[(i - 1) * APART] + i;
#pragma omp ordered depend(source)
    }
    expect(data[(STEPS - 1) * APART] == 1 + (STEPS - 1) * STEPS / 2, "chain");
    free(data);
    printf("chain\n");
}

static long *own;
#pragma omp threadprivate(own)

static void copies(void) {
    long *of_all[1024] = {0};
    own = block();
    own[5] = 9;
#pragma omp parallel copyin(own)
    {
        expect(own[5] == 9, "copyin");
#pragma omp barrier
        own = block();
        own[3 * APART] = omp_get_thread_num() + 1;
        of_all[omp_get_thread_num()] = own;
#pragma omp barrier
        for (int i = 0; i < omp_get_num_threads(); i++)
            expect(of_all[i][3 * APART] == i + 1, "threadprivate");
#pragma omp barrier
        long *passed;
#pragma omp single copyprivate(passed)
        {
            passed = own;
            passed[7] = 70;
        }
        expect(passed[7] == 70, "copyprivate");
#pragma omp barrier
        passed[(20 + omp_get_thread_num()) * 8] = 1;
#pragma omp barrier
        for (int i = 0; i < omp_get_num_threads(); i++)
            expect(passed[(20 + i) * 8] == 1, "what was passed");
    }
    printf("copies\n");
}

int main(void) {
    relay("a writer that never flushes", say_silently, wait_with_flushes);
    relay("plain loads and stores", say_silently, wait_silently);
    relay("flushes", say_between_flushes, wait_with_flushes);
    relay("release and acquire", say_atomically, wait_atomically);
    relay("looks between work", say_atomically, wait_at_work);
    locks();
    sums();
    loops();
    tasks();
    chain();
    copies();
    return wrong != 0;
}
