/* Ping-pong: a thread of node 0 answers requests; every node sends some and waits for each answer.
 *
 *     hiroba cc -O2 -pthread pingpong.c -o pingpong
 *     hiroba run -n 2 ./pingpong [ROUNDS [BYTES]] */
#include <pthread.h>

#include "ports.h"

static void *serve(void *argument)
{
    hiroba_port port = *(hiroba_port *)argument;
    long answered = 0;
    for (;;) {
        hiroba_port_message request;
        MUST(hiroba_port_receive(port, &request, HIROBA_PORT_ANY_SIZE, HIROBA_PORT_FOREVER));
        if (request.reply.name == HIROBA_PORT_NULL) { /* the end */
            hiroba_port_release(&request);
            return (void *)answered;
        }
        hiroba_port_message reply;
        memset(&reply, 0, sizeof reply);
        reply.id = request.id + 1;
        reply.inline_data = request.inline_data;
        reply.inline_bytes = request.inline_bytes;
        MUST(answer(&request, &reply));
        hiroba_port_release(&request);
        answered++;
    }
}

int main(int argc, char **argv)
{
    MUST(hiroba_init(&argc, &argv));
    long rounds = argc > 1 ? atol(argv[1]) : 1000;
    size_t bytes = argc > 2 ? (size_t)atol(argv[2]) : 4;
    hiroba_port port = HIROBA_PORT_NULL;
    pthread_t server;
    if (hiroba_node() == 0) {
        MUST(hiroba_port_allocate(&port));
        MUST(hiroba_port_register("pong", port));
        EXPECT(pthread_create(&server, NULL, serve, &port) == 0, "a thread");
    }
    hiroba_port pong, reply_port;
    MUST(hiroba_port_look_up("pong", &pong, HIROBA_PORT_FOREVER));
    MUST(hiroba_port_allocate(&reply_port));
    unsigned char *data = malloc(bytes + 1);
    EXPECT(data != NULL, "memory");
    hiroba_barrier();
    double began = hiroba_wtime();
    for (long round = 0; round < rounds; round++) {
        hiroba_port_message request, reply;
        memset(&request, 0, sizeof request);
        memset(data, (int)(round + hiroba_node()), bytes);
        request.id = (uint32_t)(2 * round);
        request.inline_data = data;
        request.inline_bytes = bytes;
        MUST(hiroba_port_rpc(copy_send(pong), &request, reply_port, &reply, HIROBA_PORT_ANY_SIZE, HIROBA_PORT_FOREVER));
        EXPECT(reply.id == request.id + 1 && reply.sender == 0, "the answer to this request");
        EXPECT(reply.inline_bytes == bytes && memcmp(reply.inline_data, data, bytes) == 0, "the same bytes");
        hiroba_port_release(&reply);
    }
    double took = hiroba_wtime() - began;
    hiroba_barrier();
    if (hiroba_node() == 0) {
        hiroba_port_message end;
        void *answered;
        memset(&end, 0, sizeof end);
        MUST(hiroba_port_send(copy_send(pong), &end, HIROBA_PORT_FOREVER));
        EXPECT(pthread_join(server, &answered) == 0, "the thread's end");
        EXPECT((long)answered == rounds * hiroba_nodes(), "each request answered once");
        printf("round trips %ld of %zu bytes, %.2f us each on node 0\n", rounds, bytes, 1e6 * took / (double)rounds);
        puts("checks                   passed");
    }
    free(data);
    hiroba_finalize();
    return 0;
}
