/*
 * Proves: hiroba_run calls its function once on every thread of every node, with dense thread numbers and the
 * argument. Barriers and locks inside count threads; outside, they count nodes again.
 */
#include <stdint.h>

#include "check.h"

enum { THREADS_MAX = 4096 };

struct board {
    uint32_t calls[THREADS_MAX], node[THREADS_MAX];
    uint32_t threads, entered;
};

static void visit(void *argument)
{
    struct board *board = argument;
    int thread = hiroba_thread(), threads = hiroba_threads();
    CHECK(thread >= 0 && thread < threads && threads <= THREADS_MAX, "thread %d of %d", thread,
          threads);
    CHECK(threads % hiroba_nodes() == 0, "%d threads on %d nodes", threads, hiroba_nodes());
    board->calls[thread]++;
    board->node[thread] = (uint32_t)hiroba_node();
    hiroba_lock(1);
    board->threads = (uint32_t)threads;
    board->entered++;
    hiroba_unlock(1);
    hiroba_barrier();
    CHECK(board->entered % (uint32_t)threads == 0, "%u threads entered, %d there are",
          (unsigned)board->entered, threads);
    for (int i = 0; i < threads; i++)
        CHECK(board->calls[i] == board->calls[thread], "thread %d was called %u times, not %u", i,
              (unsigned)board->calls[i], (unsigned)board->calls[thread]);
    hiroba_barrier();
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    int nodes = hiroba_nodes();
    struct board *board = shared(sizeof *board);
    for (uint32_t time = 1; time <= 5; time++) {
        int result = hiroba_run(visit, board);
        CHECK(result == 0, "hiroba_run returned %d", result);
        CHECK(hiroba_thread() == hiroba_node() && hiroba_threads() == nodes,
              "outside hiroba_run this is thread %d of %d", hiroba_thread(), hiroba_threads());
        hiroba_barrier();
        uint32_t per_node[THREADS_MAX] = {0};
        for (uint32_t i = 0; i < board->threads; i++) {
            CHECK(board->calls[i] == time, "thread %u was called %u times", (unsigned)i,
                  (unsigned)board->calls[i]);
            per_node[board->node[i]]++;
        }
        for (int i = 0; i < nodes; i++)
            CHECK(per_node[i] == board->threads / (uint32_t)nodes, "node %d ran %u threads", i,
                  (unsigned)per_node[i]);
        hiroba_barrier();
    }
    hiroba_finalize();
    return 0;
}
