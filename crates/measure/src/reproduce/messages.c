/* Messages to ports, in the pattern in which NORMA IPC/DE was measured. A thread of node 0 answers node 1,
 * which sends messages with inline data, then with pages out of line. Before that, a thread of node 1 answers
 * another thread of the same node.
 *
 *     messages ROUNDS
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiroba.h>
#include <hiroba_port.h>

enum { PAGE_BYTES = 4096, PAGES_MAX = 32, BYTES_MAX = 16384 };
static const int SIZES[] = {4, 64, 440, 441, 1024, 4096, 8192, 8193, BYTES_MAX};

static void must(int result, const char *what)
{
    if (result != 0) {
        fprintf(stderr, "messages: %s: %s\n", what, hiroba_error_string());
        exit(1);
    }
}

static void *serve(void *argument)
{
    hiroba_port port = *(hiroba_port *)argument;
    for (bool ended = false; !ended;) {
        hiroba_port_message request, reply;
        must(hiroba_port_receive(port, &request, HIROBA_PORT_ANY_SIZE, HIROBA_PORT_FOREVER), "receiving");
        ended = request.reply.name == HIROBA_PORT_NULL;
        if (!ended) {
            hiroba_port_right to = {request.reply.name, HIROBA_PORT_MOVE_SEND_ONCE};
            memset(&reply, 0, sizeof reply);
            reply.inline_data = request.inline_data;
            reply.inline_bytes = request.inline_bytes;
            must(hiroba_port_send(to, &reply, HIROBA_PORT_FOREVER), "answering");
        }
        hiroba_port_release(&request);
    }
    return NULL;
}

static void *serve_name(void *name)
{
    hiroba_port port;
    must(hiroba_port_allocate(&port), "making a port");
    must(hiroba_port_register(name, port), "registering");
    return serve(&port);
}

static bool good = true;

/* Returns the median time of a round trip in seconds. */
static double round_trip(hiroba_port to, hiroba_port reply_port, size_t inline_bytes, size_t pages, long rounds)
{
    static char data[BYTES_MAX];
    double *took = malloc((size_t)rounds * sizeof *took);
    hiroba_port_right right = {to, HIROBA_PORT_COPY_SEND};
    if (took == NULL)
        exit(1);
    for (long round = -10; round < rounds; round++) {
        hiroba_port_message request, reply;
        hiroba_port_region region = {NULL, pages * PAGE_BYTES, 1};
        memset(&request, 0, sizeof request);
        data[0] = (char)round;
        request.inline_data = data;
        request.inline_bytes = inline_bytes;
        if (pages > 0) {
            region.start = hiroba_port_region_allocate(region.bytes);
            if (region.start == NULL)
                exit(1);
            memset(region.start, 1, region.bytes);
            request.regions = &region;
            request.region_count = 1;
        }
        double began = hiroba_wtime();
        must(hiroba_port_rpc(right, &request, reply_port, &reply, HIROBA_PORT_ANY_SIZE, HIROBA_PORT_FOREVER), "asking");
        double ended = hiroba_wtime();
        good = good && reply.inline_bytes == inline_bytes && *(const char *)reply.inline_data == data[0];
        hiroba_port_release(&reply);
        if (round < 0)
            continue;
        long at = round;
        for (; at > 0 && took[at - 1] > ended - began; at--)
            took[at] = took[at - 1];
        took[at] = ended - began;
    }
    double median = took[rounds / 2];
    free(took);
    return median;
}

static void measure(const char *server, const char *where, bool has_pages, long rounds)
{
    hiroba_port to, reply_port;
    char field[32];
    must(hiroba_port_look_up(server, &to, HIROBA_PORT_FOREVER), "looking up");
    must(hiroba_port_allocate(&reply_port), "making a port");
    for (size_t at = 0; at < sizeof SIZES / sizeof *SIZES; at++) {
        snprintf(field, sizeof field, "%s %d", where, SIZES[at]);
        printf("%-24s %.6f\n", field, 1e6 * round_trip(to, reply_port, (size_t)SIZES[at], 0, rounds) / 2);
    }
    for (int pages = 1; has_pages && pages <= PAGES_MAX; pages++) {
        double s = round_trip(to, reply_port, 4, (size_t)pages, rounds);
        snprintf(field, sizeof field, "pages %d", pages);
        printf("%-24s %.6f\n", field, (double)pages * PAGE_BYTES / s / 1e6);
    }
    hiroba_port_message end;
    hiroba_port_right right = {to, HIROBA_PORT_COPY_SEND};
    memset(&end, 0, sizeof end);
    must(hiroba_port_send(right, &end, HIROBA_PORT_FOREVER), "ending");
}

int main(int argc, char **argv)
{
    long rounds = argc > 1 ? strtol(argv[1], NULL, 10) : 100;
    if (rounds < 1 || rounds > 100000) {
        fprintf(stderr, "messages: expected a number from 1 to 100000, got '%s'\n", argv[1]);
        return 2;
    }
    must(hiroba_init(&argc, &argv), "hiroba_init");
    if (hiroba_node() == 1) {
        pthread_t thread;
        char name[] = "local";
        if (pthread_create(&thread, NULL, serve_name, name) != 0)
            return 1;
        measure("local", "local", false, rounds);
        pthread_join(thread, NULL);
    }
    hiroba_barrier();
    if (hiroba_node() == 0)
        serve_name((char[]){"remote"});
    else if (hiroba_node() == 1)
        measure("remote", "remote", true, rounds);
    hiroba_barrier();
    if (hiroba_node() == 1)
        printf("checks                   %s\n", good ? "passed" : "failed");
    hiroba_finalize();
    return good ? 0 : 1;
}
