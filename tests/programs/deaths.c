/* Prints, then dies on node 1 in the way that the argument names. */
#include <hiroba.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void store(int *place)
{
    *place = 7; /* HERE: store */
}

static size_t measure(const char *text)
{
    return strlen(text); /* HERE: measure */
}

/* Dies inside the C library on an invalid stack, so that no caller can be found. */
static void lose_the_way(void)
{
#ifdef __x86_64__
    size_t (*length)(const char *) = strlen;
    __asm__ volatile("xor %%edi, %%edi\n\tmov $16, %%rsp\n\tjmp *%0" : : "r"(length) : "rdi", "memory");
#else
    measure(NULL);
#endif
}

/* Allocates more and more memory. The bound is above the limit that the test sets. */
static void hoard(void)
{
    enum { PIECE = 1 << 20, PIECES = 1 << 10 };
    for (int count = 0; count < PIECES; count++) {
        char *piece = malloc(PIECE);
        if (piece == NULL)
            exit(3);
        memset(piece, count | 1, PIECE);
    }
    exit(4);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    const char *node = getenv("HIROBA_NODE");
    printf("before\n");
    if (strcmp(how, "early") == 0 && node && strcmp(node, "1") == 0)
        raise(SIGKILL);
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
    if (hiroba_node() == 1 && strcmp(how, "library") == 0)
        return (int)measure(argc > 5 ? how : NULL);
    if (hiroba_node() == 1 && strcmp(how, "lost") == 0)
        lose_the_way();
    if (hiroba_node() == 1 && strcmp(how, "half") == 0) {
        printf("half a line");
        store(NULL);
    }
    if (hiroba_node() == 1 && strcmp(how, "exit") == 0)
        exit(0);
    if (hiroba_node() == 1 && strcmp(how, "kill") == 0)
        raise(SIGKILL);
    if (hiroba_node() == 1 && strcmp(how, "hoard") == 0)
        hoard();
    hiroba_barrier();
    hiroba_finalize();
    return 0;
}
