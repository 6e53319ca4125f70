/* Producers and a consumer: every node makes numbers and sends them to a port of its own, whose receive
 * right it has sent to node 0 in a message. Node 0 receives from a set of all these ports until each
 * producer has sent its end.
 *
 *     hiroba cc -O2 -pthread pipeline.c -o pipeline
 *     hiroba run -n 4 ./pipeline [COUNT] */
#include <pthread.h>

#include "ports.h"

enum { NUMBERS = 1, END = 2, PORT = 3, NUMBERS_A_MESSAGE = 100 };

struct consumer {
    hiroba_port in;
    uint64_t sum;
    long messages;
};

static void *consume(void *argument)
{
    struct consumer *me = argument;
    hiroba_port set;
    MUST(hiroba_port_allocate_set(&set));
    for (int node = 0; node < hiroba_nodes(); node++) {
        hiroba_port_message message;
        MUST(hiroba_port_receive(me->in, &message, HIROBA_PORT_ANY_SIZE, HIROBA_PORT_FOREVER));
        EXPECT(message.id == PORT && message.right_count == 1, "a port");
        EXPECT(message.rights[0].kind == HIROBA_PORT_RECEIVE, "a receive right");
        MUST(hiroba_port_move_member(message.rights[0].name, set));
        hiroba_port_release(&message);
    }
    uint64_t *next = calloc((size_t)hiroba_nodes(), sizeof *next);
    EXPECT(next != NULL, "memory");
    for (int running = hiroba_nodes(); running > 0;) {
        hiroba_port_message message;
        MUST(hiroba_port_receive(set, &message, HIROBA_PORT_ANY_SIZE, HIROBA_PORT_FOREVER));
        if (message.id == END) {
            running--;
            MUST(hiroba_port_destroy(message.port));
        } else {
            const uint64_t *numbers = message.regions[0].start;
            size_t count = message.regions[0].bytes / sizeof *numbers;
            for (size_t at = 0; at < count; at++) {
                EXPECT(numbers[at] == next[message.sender], "a node's numbers in their order");
                next[message.sender]++;
                me->sum += numbers[at];
            }
            me->messages++;
        }
        hiroba_port_release(&message);
    }
    free(next);
    return NULL;
}

int main(int argc, char **argv)
{
    MUST(hiroba_init(&argc, &argv));
    long count = argc > 1 ? atol(argv[1]) : 20000;
    struct consumer consumer = {HIROBA_PORT_NULL, 0, 0};
    pthread_t thread;
    if (hiroba_node() == 0) {
        MUST(hiroba_port_allocate(&consumer.in));
        MUST(hiroba_port_register("consumer", consumer.in));
        EXPECT(pthread_create(&thread, NULL, consume, &consumer) == 0, "a thread");
    }
    hiroba_port out, in;
    MUST(hiroba_port_look_up("consumer", &out, HIROBA_PORT_FOREVER));
    MUST(hiroba_port_allocate(&in));
    MUST(hiroba_port_insert_right(in, make_send(in)));
    /* Some numbers are sent before the port moves; they follow it. */
    for (long made = 0; made < count;) {
        if (made == 2 * NUMBERS_A_MESSAGE || (made == 0 && count <= 2 * NUMBERS_A_MESSAGE)) {
            hiroba_port_message message;
            hiroba_port_right right = {in, HIROBA_PORT_MOVE_RECEIVE};
            memset(&message, 0, sizeof message);
            message.id = PORT;
            message.rights = &right;
            message.right_count = 1;
            MUST(hiroba_port_send(copy_send(out), &message, HIROBA_PORT_FOREVER));
        }
        long some = count - made < NUMBERS_A_MESSAGE ? count - made : NUMBERS_A_MESSAGE;
        size_t bytes = (size_t)some * sizeof(uint64_t);
        uint64_t *numbers = hiroba_port_region_allocate(bytes);
        EXPECT(numbers != NULL, "memory");
        for (long at = 0; at < some; at++)
            numbers[at] = (uint64_t)(made + at);
        hiroba_port_message message;
        hiroba_port_region region = {numbers, bytes, 1};
        memset(&message, 0, sizeof message);
        message.id = NUMBERS;
        message.regions = &region;
        message.region_count = 1;
        MUST(hiroba_port_send(copy_send(in), &message, HIROBA_PORT_FOREVER));
        made += some;
    }
    hiroba_port_message end;
    memset(&end, 0, sizeof end);
    end.id = END;
    MUST(hiroba_port_send(copy_send(in), &end, HIROBA_PORT_FOREVER));
    if (hiroba_node() == 0) {
        EXPECT(pthread_join(thread, NULL) == 0, "the thread's end");
        uint64_t expected = (uint64_t)hiroba_nodes() * (uint64_t)count * (uint64_t)(count - 1) / 2;
        EXPECT(consumer.sum == expected, "all numbers, each once");
        printf("%ld messages from %d nodes\n", consumer.messages, hiroba_nodes());
        puts("checks                   passed");
    }
    hiroba_barrier();
    hiroba_finalize();
    return 0;
}
