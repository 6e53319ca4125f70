/* Shared memory handed over by messages: blocks go round from node to node. Each node checks what the last
 * one wrote, writes something else and passes the block on. No lock and no barrier: a send releases, a
 * receive acquires.
 *
 *     hiroba cc -O2 handover.c -o handover
 *     hiroba run -n 4 ./handover [-l] [ROUNDS [BYTES]]
 *
 * With -l a node writes late, after it has passed the block on. That is an error, and the next node finds
 * it. */
#include "ports.h"

enum { BLOCKS = 3 };

static unsigned char expected(int block, long round, size_t at)
{
    return (unsigned char)((unsigned long)block * 31 + (unsigned long)round * 7 + at * 13 / 5);
}

static void fill(unsigned char *start, size_t bytes, int block, long round)
{
    for (size_t at = 0; at < bytes; at++)
        start[at] = expected(block, round, at);
}

static void pass_on(hiroba_port next, unsigned char *start, long round)
{
    hiroba_port_message message;
    memset(&message, 0, sizeof message);
    message.id = (uint32_t)round;
    message.inline_data = &start;
    message.inline_bytes = sizeof start;
    MUST(hiroba_port_send(copy_send(next), &message, HIROBA_PORT_FOREVER));
}

int main(int argc, char **argv)
{
    MUST(hiroba_init(&argc, &argv));
    int is_late = argc > 1 && strcmp(argv[1], "-l") == 0;
    long rounds = argc > 1 + is_late ? atol(argv[1 + is_late]) : 60;
    size_t bytes = argc > 2 + is_late ? (size_t)atol(argv[2 + is_late]) : 10000;
    int node = hiroba_node(), nodes = hiroba_nodes();
    unsigned char *blocks = hiroba_alloc(BLOCKS * bytes);
    EXPECT(blocks != NULL, "shared memory");
    hiroba_port in, next;
    char name[32];
    MUST(hiroba_port_allocate(&in));
    snprintf(name, sizeof name, "node %d", node);
    MUST(hiroba_port_register(name, in));
    snprintf(name, sizeof name, "node %d", (node + 1) % nodes);
    MUST(hiroba_port_look_up(name, &next, HIROBA_PORT_FOREVER));
    hiroba_barrier();
    if (node == 0)
        for (int block = 0; block < BLOCKS; block++) {
            fill(blocks + (size_t)block * bytes, bytes, block, 0);
            pass_on(next, blocks + (size_t)block * bytes, 0);
        }
    /* In each round each block visits each node once; the last round ends at node 0. */
    for (long received = 0; received < BLOCKS * rounds; received++) {
        hiroba_port_message message;
        MUST(hiroba_port_receive(in, &message, HIROBA_PORT_ANY_SIZE, HIROBA_PORT_FOREVER));
        unsigned char *start;
        EXPECT(message.inline_bytes == sizeof start, "an address");
        memcpy(&start, message.inline_data, sizeof start);
        long round = (long)message.id;
        hiroba_port_release(&message);
        int block = (int)((size_t)(start - blocks) / bytes);
        for (size_t at = 0; at < bytes; at++)
            if (start[at] != expected(block, round, at)) {
                fprintf(stderr, "node %d: block %d, round %ld: byte %zu is not what was written before the message\n",
                        node, block, round, at);
                exit(3);
            }
        round++;
        int is_last = node == 0 && received >= BLOCKS * (rounds - 1);
        if (!is_late)
            fill(start, bytes, block, round);
        if (!is_last)
            pass_on(next, start, round);
        if (is_late)
            fill(start, bytes, block, round);
    }
    hiroba_barrier();
    if (node == 0) {
        for (int block = 0; block < BLOCKS; block++)
            for (size_t at = 0; at < bytes; at++)
                EXPECT(blocks[(size_t)block * bytes + at] == expected(block, rounds * nodes, at), "the last bytes");
        printf("%d blocks of %zu bytes went round %ld times\n", BLOCKS, bytes, rounds);
        puts("checks                   passed");
    }
    hiroba_finalize();
    return 0;
}
