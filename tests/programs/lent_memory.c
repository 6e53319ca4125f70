/*
 * Proves: a node that has more data than memory keeps them in the memory of the others (--lend). Node 0 fills
 * a region homed on it, of the first argument's MiB, and reads and changes it in two orders. With "back" all
 * other nodes then fill regions of their own, of the third argument's MiB, for which they take their memory
 * back, and all data are as they were. With "kill" the last node kills itself while it has pages of node 0,
 * with "freeze" it stops for good, and with "cut" it breaks its connections for lent memory. With "stop" node
 * 1 stops while it has some. Node 2 reads all, and node 0 must still answer node 3, which has node 1
 * continue.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <netinet/in.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

/* With "short" pages repeat themselves, so that they compress. */
static int is_short;

static uint64_t value(size_t at, uint64_t round)
{
    return (is_short ? at / 16 : at * 0x9e3779b97f4a7c15u) + round;
}

static void fill(uint64_t *region, size_t words, uint64_t round)
{
    for (size_t at = 0; at < words; at++)
        region[at] = value(at, round);
}

static void expect(const uint64_t *region, size_t words, uint64_t round)
{
    for (size_t at = 0; at < words; at++)
        CHECK(region[at] == value(at, round), "round %lu: word %lu is wrong on node %d", (unsigned long)round,
              (unsigned long)at, (int)hiroba_node());
}

/* Breaks all TCP connections of this process. Over another fabric only lent memory uses some. */
static void cut(void)
{
    for (int descriptor = 3; descriptor < 1024; descriptor++) {
        struct sockaddr_in peer;
        socklen_t length = sizeof peer;
        if (getpeername(descriptor, (struct sockaddr *)&peer, &length) != 0 || peer.sin_family != AF_INET)
            continue;
        int type = 0;
        length = sizeof type;
        if (getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_STREAM)
            shutdown(descriptor, SHUT_RDWR);
    }
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    CHECK(argc >= 3, "expected: MIB keep|short|back|kill|freeze|cut|stop [MIB]");
    is_short = strcmp(argv[2], "short") == 0;
    size_t words = ((size_t)atol(argv[1]) << 20) / sizeof(uint64_t);
    uint64_t *region = hiroba_alloc_at(words * sizeof *region, 0);
    CHECK(region != NULL, "hiroba_alloc_at failed");
    int me = hiroba_node(), nodes = hiroba_nodes();

    if (me == 0) {
        fill(region, words, 1);
        expect(region, words, 1);
        expect(region, words, 1);
        /* Every page in an order without a pattern: one word is changed, the others are read. */
        size_t pages = words / 512;
        for (size_t step = 0; step < pages; step++) {
            size_t page = step * 1103 % pages;
            for (size_t at = page * 512; at < page * 512 + 512; at++)
                CHECK(region[at] == value(at, 1), "word %lu is wrong", (unsigned long)at);
            region[page * 512 + 7] = value(page * 512 + 7, 2);
        }
        for (size_t at = 0; at < words; at++)
            CHECK(region[at] == value(at, at % 512 == 7 ? 2 : 1), "word %lu is wrong", (unsigned long)at);
        fill(region, words, 3);
    }
    hiroba_barrier();
    int is_cut = strcmp(argv[2], "cut") == 0, is_frozen = strcmp(argv[2], "freeze") == 0;
    if (is_cut || is_frozen || strcmp(argv[2], "kill") == 0) {
        if (me == nodes - 1 && is_cut)
            cut();
        else if (me == nodes - 1)
            kill(getpid(), is_frozen ? SIGSTOP : SIGKILL);
        if (me == 0)
            for (;;)
                expect(region, words, 3);
        hiroba_barrier();
    }
    if (strcmp(argv[2], "stop") == 0) {
        uint64_t *process = hiroba_alloc_at(sizeof *process, 3);
        CHECK(process != NULL && nodes == 4, "hiroba_alloc_at failed, or there are not four nodes");
        if (me == 1)
            *process = (uint64_t)getpid();
        hiroba_barrier();
        if (me == 1)
            raise(SIGSTOP);
        if (me == 2) {
            usleep(200 * 1000);
            expect(region, words, 3);
        }
        if (me == 3) {
            usleep(700 * 1000);
            alarm(30);
            for (unsigned lock = 0; lock < 100; lock += 4) { /* node 0 manages these */
                hiroba_lock(lock);
                hiroba_unlock(lock);
            }
            kill((pid_t)*process, SIGCONT);
        }
        hiroba_barrier();
    }
    if (strcmp(argv[2], "back") == 0) {
        size_t own_words = ((size_t)atol(argv[3]) << 20) / sizeof(uint64_t);
        for (int node = 1; node < nodes; node++) {
            uint64_t *own = hiroba_alloc_at(own_words * sizeof *own, node);
            CHECK(own != NULL, "hiroba_alloc_at failed");
            if (me == node)
                fill(own, own_words, (uint64_t)node);
            if (me == 0)
                expect(region, words, 3);
            hiroba_barrier();
            if (me == node)
                expect(own, own_words, (uint64_t)node);
        }
        if (me == 0)
            expect(region, words, 3);
    }
    hiroba_barrier();
    hiroba_finalize();
    return 0;
}
