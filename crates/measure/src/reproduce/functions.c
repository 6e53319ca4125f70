/*
 * functions: measures SMS's functions one by one, in milliseconds by the clock and of the processor of the
 * node that used most: sms_startup, sms_alloc of a page, sms_barrier, and sms_lock with sms_unlock while all
 * nodes want the same lock.
 *
 *     hiroba run -n 8 ./functions TIMES
 */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <sms.h>

enum { LOCK = 1, BYTES = 4096, FUNCTIONS = 4 };

static const char *const NAMES[FUNCTIONS] = {"startup", "alloc", "barrier", "lock/unlock"};

struct times {
    double wall[FUNCTIONS], processor[FUNCTIONS]; /* ms a call */
};

static double ms(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

static struct times times;

/* A call of the function `which` is a part of those between `begin` and `end`. */
static double wall_began, processor_began;

static void begin(void)
{
    processor_began = ms(CLOCK_PROCESS_CPUTIME_ID);
    wall_began = ms(CLOCK_MONOTONIC);
}

static void end(int which, long calls)
{
    times.wall[which] = (ms(CLOCK_MONOTONIC) - wall_began) / (double)calls;
    times.processor[which] = (ms(CLOCK_PROCESS_CPUTIME_ID) - processor_began) / (double)calls;
}

static double more(double one, double other)
{
    return one > other ? one : other;
}

int main(int argc, char **argv)
{
    long rounds = argc > 1 ? strtol(argv[1], NULL, 10) : 100;
    if (rounds < 1 || rounds > 100000) {
        fprintf(stderr, "functions: expected a number from 1 to 100000, got '%s'\n", argv[1]);
        return 2;
    }
    begin();
    if (sms_startup(&argc, &argv) != 0)
        return 1;
    end(0, 1);

    begin();
    for (long i = 0; i < rounds; i++)
        if (sms_alloc(BYTES) == NULL)
            return 1;
    end(1, rounds);

    sms_barrier();
    begin();
    for (long i = 0; i < rounds; i++)
        sms_barrier();
    end(2, rounds);

    int nodes = hiroba_nodes();
    long *sum = sms_alloc(sizeof *sum);
    struct times *all = sms_alloc((size_t)nodes * sizeof *all);
    if (sum == NULL || all == NULL)
        return 1;
    sms_barrier();
    begin();
    for (long i = 0; i < rounds; i++) {
        sms_lock(LOCK);
        ++*sum;
        sms_unlock(LOCK);
    }
    end(3, rounds);
    all[hiroba_node()] = times;
    sms_barrier();

    bool good = *sum == rounds * nodes;
    if (hiroba_node() == 0) {
        for (int which = 0; which < FUNCTIONS; which++) {
            double wall = 0.0, processor = 0.0;
            for (int node = 0; node < nodes; node++) {
                wall = more(wall, all[node].wall[which]);
                processor = more(processor, all[node].processor[which]);
            }
            char name[32];
            snprintf(name, sizeof name, "%s processor", NAMES[which]);
            printf("%-24s %.6f\n", NAMES[which], wall);
            printf("%-24s %.6f\n", name, processor);
        }
        printf("checks                   %s\n", good ? "passed" : "failed");
    }
    sms_barrier();
    sms_shutdown();
    return good ? 0 : 1;
}
