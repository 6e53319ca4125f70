/*
 * Meets all nodes every few milliseconds, for the number of seconds in the argument, and uses almost no
 * processor time: for tests of jobs whose nodes, launchers or networks die.
 *
 * Proves: a counter that all nodes write in turn, one meeting apart, has the value that the number of
 * meetings demands.
 */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "hiroba.h"

int main(int argc, char **argv)
{
    if (hiroba_init(&argc, &argv) != 0) {
        fprintf(stderr, "%s\n", hiroba_error_string());
        return 1;
    }
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 1;
    struct { unsigned long count; int over; } *shared = hiroba_alloc(sizeof *shared);
    unsigned long meetings = 0;
    double began = hiroba_wtime();
    if (hiroba_node() == 0) {
        printf("met\n");
        fflush(stdout);
    }
    for (;;) {
        if (hiroba_node() == (int)(meetings % (unsigned long)hiroba_nodes()))
            shared->count++;
        if (hiroba_node() == 0)
            shared->over = hiroba_wtime() - began >= seconds;
        hiroba_barrier();
        meetings++;
        if (shared->count != meetings) {
            fprintf(stderr, "node %d: counted %lu of %lu meetings\n", hiroba_node(), shared->count, meetings);
            return 2;
        }
        int over = shared->over;
        hiroba_barrier();
        if (over)
            break;
        usleep(5000);
    }
    hiroba_finalize();
    return 0;
}
