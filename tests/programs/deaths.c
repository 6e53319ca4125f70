/* Prints, then dies on node 1 in the way that the argument says. */
#include <hiroba.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void store(int *place)
{
    *place = 7; /* HERE: store */
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    printf("before\n");
    if (hiroba_init(&argc, &argv) != 0)
        return 1;
    printf("node %d one\nnode %d two\n", hiroba_node(), hiroba_node());
    if (strcmp(how, "long") == 0) {
        static char line[30001];
        memset(line, 'a' + hiroba_node(), sizeof line - 1);
        for (int count = 0; count < 50; count++)
            puts(line);
    }
    hiroba_barrier();
    if (hiroba_node() == 1 && strcmp(how, "null") == 0)
        store(NULL);
    if (hiroba_node() == 1 && strcmp(how, "exit") == 0)
        exit(0);
    if (hiroba_node() == 1 && strcmp(how, "kill") == 0)
        raise(SIGKILL);
    hiroba_barrier();
    hiroba_finalize();
    return 0;
}
