/* Loops whose schedule the environment sets, of all types of loop variables: every iteration runs once, under
 * any schedule. Usage: openmp_schedules [SPAN]. Prints what went wrong and returns 1, or "every iteration
 * once". With "speeds" instead, it prints whether threads that are slow in a loop get little of it. */
#include <limits.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 5000 };

static int hits[MOST];
static int wrong;

static void hit(long place) {
#pragma omp atomic
    hits[place]++;
}

/* Of the first places all are hit `times` times, and the others never; the next loop begins anew. */
static void check(const char *what, long count, int times) {
    for (long place = 0; place < MOST; place++) {
        int expected = place < count ? times : 0;
        if (hits[place] != expected && wrong++ < 10)
            printf("%s: iteration %ld of %ld ran %d times, expected %d\n", what, place, count, hits[place], expected);
        hits[place] = 0;
    }
}

static void of_all_types(int span) {
#pragma omp parallel for schedule(runtime)
    for (int i = 0; i < span; i++)
        hit(i);
    check("int", span, 1);
#pragma omp parallel
    {
#pragma omp for schedule(runtime)
        for (int i = span - 1; i >= 0; i -= 1)
            hit(i);
#pragma omp for schedule(runtime)
        for (long i = -7L * span; i < 0; i += 7)
            hit(i / 7 + span);
#pragma omp for schedule(runtime)
        for (unsigned i = UINT_MAX - 3 * (unsigned)span; i < UINT_MAX; i += 3)
            hit((i - (UINT_MAX - 3 * (unsigned)span)) / 3);
#pragma omp for schedule(runtime)
        for (unsigned long long i = ULLONG_MAX; i > ULLONG_MAX - 2ull * (unsigned)span; i -= 2)
            hit((long)((ULLONG_MAX - i) / 2));
#pragma omp for schedule(runtime)
        for (long i = LONG_MIN; i < LONG_MIN + span; i++)
            hit(i - LONG_MIN);
#pragma omp for schedule(runtime) collapse(2)
        for (int i = 0; i < span / 10; i++)
            for (int j = 0; j < 10; j++)
                hit(i * 10 + j);
    }
    check("other types", span / 10 * 10, 6);
}

/* A loop that is executed again and again, whose threads do not wait for each other. */
static void again(int span) {
#pragma omp parallel
    for (int execution = 0; execution < 100; execution++) {
#pragma omp for schedule(runtime) nowait
        for (int i = 0; i < span; i++)
            hit(i);
    }
    check("nowait", span, 100);
    for (int threads = 1; threads <= omp_get_max_threads(); threads++) {
#pragma omp parallel for schedule(runtime) num_threads(threads)
        for (int i = 0; i < span; i++)
            hit(i);
        check("teams of other sizes", span, 1);
    }
}

static void expect(const char *what, long is, long expected) {
    if (is != expected && wrong++ < 10)
        printf("%s: %ld, expected %ld\n", what, is, expected);
}

static void in_order(int span) {
    long sum = 0, next = 0, last = -1;
    static double wave[MOST];
#pragma omp parallel for schedule(runtime) ordered
    for (int i = 0; i < span; i++) {
        hit(i);
#pragma omp ordered
        next = next == i ? next + 1 : -1;
    }
    check("ordered", span, 1);
    expect("ordered regions", next, span);
#pragma omp parallel for schedule(runtime) reduction(+ : sum) lastprivate(last)
    for (int i = 0; i < span; i++) {
        hit(i);
        sum += i;
        last = i;
    }
    check("reduction", span, 1);
    expect("sum", sum, (long)span * (span - 1) / 2);
    expect("last", last, span - 1);
#pragma omp parallel for schedule(runtime) ordered(1)
    for (int i = 1; i < span; i++) {
#pragma omp ordered depend(sink : i - 1)
        wave[i] = wave[i - 1] + 1;
#pragma omp ordered depend(source)
    }
    expect("wave", (long)wave[span - 1], span - 1);
}

/* The schedules that the program names itself. */
static void named(int span) {
#pragma omp parallel
    {
#pragma omp for schedule(dynamic)
        for (int i = 0; i < span; i++)
            hit(i);
#pragma omp for schedule(dynamic, 7) nowait
        for (long i = span - 1; i >= 0; i--)
            hit(i);
#pragma omp for schedule(monotonic : dynamic, 3) nowait
        for (unsigned long i = 0; i < (unsigned long)span; i++)
            hit((long)i);
#pragma omp for schedule(guided)
        for (int i = 0; i < span; i++)
            hit(i);
#pragma omp for schedule(monotonic : guided, 5)
        for (int i = 0; i < span; i++)
            hit(i);
    }
    check("dynamic and guided", span, 5);
}

/* A loop that is cancelled leaves the next ones alone. */
static void cancelled(int span) {
    for (int round = 0; round < 70; round++) {
        int ran = 0;
#pragma omp parallel
        {
#pragma omp for schedule(runtime) reduction(+ : ran)
            for (int i = 0; i < span; i++) {
                ran++;
                if (i == span / 8) {
#pragma omp cancel for
                }
#pragma omp cancellation point for
            }
        }
        if (ran > span)
            expect("cancelled", ran, span);
    }
    of_all_types(span);
}

static void work(int amount) {
    for (volatile int i = 0; i < amount * 200; i++)
        ;
}

enum { LOOPS = 4, SPAN = 2000, SLOW = 20 };

/* Three loops in which thread 0 is slow, and one in which thread 1 is. */
static int follows_speeds(void) {
    int slow[LOOPS] = {0};
    for (int execution = 0; execution < 6; execution++) {
        for (int of_loop = 0; of_loop < LOOPS; of_loop++)
            slow[of_loop] = 0;
#pragma omp parallel num_threads(2)
        {
            int me = omp_get_thread_num();
#pragma omp for schedule(runtime) reduction(+ : slow[ : 1])
            for (int i = 0; i < SPAN; i++) {
                slow[0] += me == 0;
                work(me == 0 ? SLOW : 1);
            }
#pragma omp for schedule(runtime) reduction(+ : slow[1 : 1])
            for (unsigned long long i = 0; i < SPAN; i++) {
                slow[1] += me == 1;
                work(me == 1 ? SLOW : 1);
            }
#pragma omp for schedule(runtime) reduction(+ : slow[2 : 1])
            for (long i = SPAN; i > 0; i--) {
                slow[2] += me == 0;
                work(me == 0 ? SLOW : 1);
            }
        }
#pragma omp parallel for schedule(runtime) num_threads(2) reduction(+ : slow[3 : 1])
        for (int i = 0; i < SPAN; i++) {
            slow[3] += omp_get_thread_num() == 0;
            work(omp_get_thread_num() == 0 ? SLOW : 1);
        }
    }
    for (int of_loop = 0; of_loop < LOOPS; of_loop++)
        if (slow[of_loop] > SPAN / 4 && ++wrong)
            printf("loop %d: the slow thread has %d of %d iterations\n", of_loop, slow[of_loop], SPAN);
    if (!wrong)
        printf("parts follow speeds\n");
    return wrong != 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "speeds") == 0)
        return follows_speeds();
    int span = argc > 1 ? atoi(argv[1]) : 1000;
    omp_sched_t kind;
    int chunk;
    omp_get_schedule(&kind, &chunk);
    omp_set_schedule(kind, chunk);
    of_all_types(span);
    again(span);
    in_order(span);
    named(span);
    cancelled(span);
    if (!wrong)
        printf("every iteration once\n");
    return wrong != 0;
}
