/*
 * For tests of reports: node 1 writes invalid data to the connections of its fabric, like a program that uses
 * a wrong descriptor number. Needs --fabric tcp.
 */
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

enum { DESCRIPTORS = 1024 };

int main(int argc, char **argv)
{
    join(&argc, &argv);
    int *word = shared(sizeof *word);
    hiroba_barrier();
    if (hiroba_node() == 0)
        *word = 1;
    hiroba_barrier();
    CHECK(*word == 1, "the word is %d", *word);
    if (hiroba_node() == 1) {
        char garbage[512];
        memset(garbage, 0xa5, sizeof garbage);
        int written = 0;
        for (int fd = 3; fd < DESCRIPTORS; fd++) {
            struct sockaddr_in peer;
            socklen_t length = sizeof peer;
            if (getpeername(fd, (struct sockaddr *)&peer, &length) == 0 && peer.sin_family == AF_INET)
                written += write(fd, garbage, sizeof garbage) == (ssize_t)sizeof garbage;
        }
        CHECK(written > 0, "no connection was found");
    }
    hiroba_barrier();
    hiroba_barrier();
    hiroba_finalize();
    return 0;
}
