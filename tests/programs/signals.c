/*
 * A program's own signal handler may access shared memory, also while its thread waits in a barrier or is
 * about to: the handler's faults and the thread's wait do not disturb each other.
 */
#define _XOPEN_SOURCE 700 /* sigaction, setitimer */

#include "check.h"

#include <signal.h>
#include <sys/time.h>

enum { PAGE_BYTES = 4096, PAGES = 512, ROUNDS = 100 };

static volatile unsigned char *memory;
static volatile sig_atomic_t ticks;

static void on_tick(int signal)
{
    (void)signal;
    /* Every tick reads another page of the other nodes', and writes a byte of this node's own. */
    int page = ticks % PAGES;
    unsigned char seen = memory[(size_t)page * PAGE_BYTES];
    memory[(size_t)page * PAGE_BYTES + 1 + (size_t)hiroba_node()] = (unsigned char)(seen + 1);
    ticks = ticks + 1;
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    memory = shared((size_t)PAGES * PAGE_BYTES);
    if (hiroba_node() == 0)
        for (int page = 0; page < PAGES; page++)
            memory[(size_t)page * PAGE_BYTES] = 7;
    hiroba_barrier();

    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_tick;
    action.sa_flags = SA_RESTART;
    CHECK(sigaction(SIGALRM, &action, NULL) == 0, "sigaction failed");
    struct itimerval interval = {{0, 700}, {0, 700}};
    CHECK(setitimer(ITIMER_REAL, &interval, NULL) == 0, "setitimer failed");

    unsigned long *counter = shared(sizeof *counter);
    for (int round = 0; round < ROUNDS || ticks < 50; round++) {
        if (round < ROUNDS) {
            hiroba_lock(3);
            *counter += 1;
            hiroba_unlock(3);
            hiroba_barrier();
        }
    }
    memset(&interval, 0, sizeof interval);
    CHECK(setitimer(ITIMER_REAL, &interval, NULL) == 0, "setitimer failed");
    hiroba_barrier();
    CHECK(*counter == (unsigned long)ROUNDS * (unsigned long)hiroba_nodes(), "counted %lu", *counter);
    for (int page = 0; page < PAGES && page < ticks; page++)
        CHECK(memory[(size_t)page * PAGE_BYTES + 1 + (size_t)hiroba_node()] == 8,
              "the handler's store to page %d is lost", page);
    hiroba_finalize();
    return 0;
}
