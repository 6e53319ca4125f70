/*
 * Proves: hiroba_init leaves the program's arguments unchanged, whatever they are. Every node has its own
 * number below hiroba_nodes(). Outside hiroba_run a node counts as one thread. hiroba_wtime increases.
 * "--expect-nodes N" as the first arguments checks the size of the job.
 */
#include "check.h"

int main(int argc, char **argv)
{
    int argc_before = argc;
    char **argv_before = argv;
    char **copies = malloc((size_t)argc * sizeof *copies);
    for (int i = 0; i < argc; i++) {
        copies[i] = malloc(strlen(argv[i]) + 1);
        strcpy(copies[i], argv[i]);
    }
    join(&argc, &argv);

    CHECK(argc == argc_before, "argc was %d and is %d", argc_before, argc);
    CHECK(argv == argv_before && argv[argc] == NULL, "argv was moved or its end was lost");
    for (int i = 0; i < argc; i++)
        CHECK(strcmp(argv[i], copies[i]) == 0, "argument %d was '%s' and is '%s'", i, copies[i],
              argv[i]);

    int node = hiroba_node(), nodes = hiroba_nodes();
    CHECK(nodes >= 1 && node >= 0 && node < nodes, "node %d of %d", node, nodes);
    if (argc > 2 && strcmp(argv[1], "--expect-nodes") == 0)
        CHECK(nodes == atoi(argv[2]), "expected %s nodes, found %d", argv[2], nodes);
    CHECK(hiroba_thread() == node && hiroba_threads() == nodes, "thread %d of %d outside hiroba_run",
          hiroba_thread(), hiroba_threads());

    double start = hiroba_wtime(), end = start;
    for (long tries = 0; end == start && tries < 100000000; tries++)
        end = hiroba_wtime();
    CHECK(end > start, "hiroba_wtime stands still at %g", start);

    int *claims = shared((size_t)nodes * sizeof *claims);
    claims[node]++;
    hiroba_barrier();
    for (int i = 0; i < nodes; i++)
        CHECK(claims[i] == 1, "%d nodes say that they are node %d", claims[i], i);
    hiroba_finalize();
    return 0;
}
