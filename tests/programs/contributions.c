/*
 * Proves: what nodes contribute to a barrier is used once, by node 0, in the order of the nodes, before any
 * node goes on. With "plain" nothing is contributed; with "late" node 0 makes an ordinary barrier of it.
 */
#include <stddef.h>

#include "check.h"

/* Functions for libhiroba_pthread.so and libhiroba_gomp.so, which no header declares. */
size_t hiroba_contribution_bytes_max(void);
void hiroba_contribute(const unsigned char *bytes, size_t count);
void hiroba_barrier_combining(void (*visit)(int node, const unsigned char *bytes, size_t count));

static long *sum;
static int last;

/* The last nodes contribute as much as they may. */
static size_t length_of(int node)
{
    return node % 2 == 0 ? sizeof(long) : hiroba_contribution_bytes_max();
}

static void visit(int node, const unsigned char *bytes, size_t count)
{
    long value;
    CHECK(node > last, "node %d after node %d", node, last);
    CHECK(count == length_of(node), "%lu bytes of node %d", (unsigned long)count, node);
    CHECK(bytes[count - 1] == (count > sizeof value ? node : 0), "the last byte of node %d", node);
    last = node;
    memcpy(&value, bytes, sizeof value);
    hiroba_lock(3);
    *sum += value;
    hiroba_unlock(3);
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    int node = hiroba_node(), nodes = hiroba_nodes();
    const char *mode = argc > 1 ? argv[1] : "";
    int contributes = strcmp(mode, "plain") != 0, is_late = strcmp(mode, "late") == 0;
    hiroba_options sequential = {0};
    sequential.protocol = "sc";
    sum = hiroba_alloc_with(sizeof *sum, &sequential);
    CHECK(sum != NULL, "%s", hiroba_error_string());

    long expected = 0;
    for (long round = 1; round <= 100; round++) {
        long value = round + node;
        unsigned char bytes[16 << 10];
        size_t count = length_of(node);
        CHECK(count <= sizeof bytes, "room for %lu bytes", (unsigned long)count);
        memset(bytes, node, count);
        memcpy(bytes, &value, sizeof value);
        last = -1;
        /* In every third round only some nodes contribute. */
        int alone = round % 3 == 0 && nodes > 1;
        if (contributes && !(alone && node == 0))
            hiroba_contribute(bytes, count);
        if (is_late)
            hiroba_barrier();
        else
            hiroba_barrier_combining(visit);
        for (int other = alone ? 1 : 0; contributes && other < nodes; other++)
            expected += round + other;
        /* With "sum" the other nodes read it in the end. */
        if (round % 10 == 0 && (node == 0 || round == 100 || strcmp(mode, "sum") != 0))
            CHECK(*sum == expected, "round %ld: %ld, not %ld", round, *sum, expected);
        if (round % 10 == 0)
            hiroba_barrier();
    }
    hiroba_finalize();
    return 0;
}
