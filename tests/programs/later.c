/*
 * Proves: all nodes have equal addresses, and programs that they execute after hiroba_init have random ones
 * again. With the argument "address" it prints the address of its main.
 */
#define _DEFAULT_SOURCE
#include "check.h"

#include <stdint.h>

enum { TIMES = 4 };

static char *self;

static void ask(const char *command, char *answer, int bytes)
{
    FILE *output = popen(command, "r");
    CHECK(output != NULL && fgets(answer, bytes, output) != NULL, "'%s' says nothing", command);
    pclose(output);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "address") == 0) {
        printf("%p\n", (void *)(uintptr_t)&main);
        return 0;
    }
    int expect_random = argc > 1 && strcmp(argv[1], "random") == 0;
    self = argv[0];
    join(&argc, &argv);

    uintptr_t *mains = shared((size_t)hiroba_nodes() * sizeof *mains);
    mains[hiroba_node()] = (uintptr_t)&main;
    hiroba_barrier();
    for (int node = 0; node < hiroba_nodes(); node++)
        CHECK(mains[node] == (uintptr_t)&main, "main lies elsewhere on node %d", node);

    char persona[32], command[4200], first[32], next[32];
    ask("cat /proc/self/personality", persona, sizeof persona);
    long fixed = strtol(persona, NULL, 16) & 0x0040000; /* ADDR_NO_RANDOMIZE */
    CHECK((fixed == 0) == expect_random, "a program executed later has the personality %s", persona);
    snprintf(command, sizeof command, "'%s' address", self);
    int differ = 0;
    ask(command, first, sizeof first);
    for (int time = 1; time < TIMES; time++) {
        ask(command, next, sizeof next);
        differ += strcmp(first, next) != 0;
    }
    CHECK((differ > 0) == expect_random, "%d of %d programs executed later lie elsewhere", differ, TIMES - 1);
    hiroba_finalize();
    return 0;
}
