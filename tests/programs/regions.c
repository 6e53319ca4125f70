/* Long messages with regions between all nodes. What has come is kept for a while, on node 0 until it is more
 * than a landing pool holds, and then given back in another order; some regions are taken out and sent on to
 * the next node. Every byte follows from its message, and is checked when it comes and before it goes.
 *
 *     regions MESSAGES
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiroba.h>
#include <hiroba_port.h>

enum { REGIONS_MAX = 3, KEPT_MAX = 400, WAITING_MAX = 400, NODES_MAX = 16 };

static int nodes, me;
static long messages;
static hiroba_port own, others[NODES_MAX];

static void fail(const char *what)
{
    fprintf(stderr, "regions: node %d: %s: %s\n", me, what, hiroba_error_string());
    exit(1);
}

static void must(int result, const char *what)
{
    if (result != 0)
        fail(what);
}

static uint64_t mixed(uint64_t number)
{
    number = (number ^ number >> 31) * 0x7fb5d329728ea185u;
    number = (number ^ number >> 27) * 0x81dadef4bc2dd44du;
    return number ^ number >> 33;
}

/* A message on its way: who made it, which one, and the number of nodes that it still has to see. */
struct label {
    uint64_t sender, number, hops;
};

static uint64_t dice(const struct label *label, uint64_t which)
{
    return mixed(label->sender * 1000003 + label->number * 101 + which);
}

static size_t region_bytes(const struct label *label, size_t region)
{
    uint64_t rolled = dice(label, region);
    switch (rolled % 8) {
    case 0:
        return 0;
    case 1:
        return 100;
    case 6:
        return 700000 + rolled % 4096;
    case 7:
        return 1500000 + rolled % 4096;
    default:
        return 5000 + rolled / 8 % 200000;
    }
}

static size_t region_count(const struct label *label)
{
    return dice(label, 10) % (REGIONS_MAX + 1);
}

static int first_destination(const struct label *label)
{
    return (int)((label->sender + 1 + dice(label, 11) % (uint64_t)(nodes > 1 ? nodes - 1 : 1)) % (uint64_t)nodes);
}

static uint64_t hops_of(const struct label *label)
{
    return dice(label, 12) % 3;
}

static void fill(const struct label *label, size_t region, unsigned char *start, size_t bytes)
{
    uint64_t seed = dice(label, 20 + region);
    for (size_t at = 0; at < bytes; at++)
        start[at] = (unsigned char)((seed + at * 2654435761u) >> 13);
}

static void check(const hiroba_port_message *message)
{
    struct label label;
    if (message->inline_bytes != sizeof label)
        fail("another inline part");
    memcpy(&label, message->inline_data, sizeof label);
    if (message->region_count != region_count(&label))
        fail("another number of regions");
    for (size_t region = 0; region < message->region_count; region++) {
        const unsigned char *start = message->regions[region].start;
        size_t bytes = message->regions[region].bytes;
        uint64_t seed = dice(&label, 20 + region);
        if (bytes != region_bytes(&label, region))
            fail("a region of another length");
        if (bytes > 0 && (uintptr_t)start % _Alignof(max_align_t) != 0)
            fail("a region that is not aligned");
        for (size_t at = 0; at < bytes; at++)
            if (start[at] != (unsigned char)((seed + at * 2654435761u) >> 13))
                fail("a region with other bytes");
    }
}

static hiroba_port_message described(const struct label *label, const hiroba_port_region *regions)
{
    hiroba_port_message message;
    memset(&message, 0, sizeof message);
    message.inline_data = label;
    message.inline_bytes = sizeof *label;
    message.regions = regions;
    message.region_count = region_count(label);
    return message;
}

/* A message that is to be sent on, whose regions were taken out of what has come. */
struct waiting {
    struct label label;
    hiroba_port_region regions[REGIONS_MAX];
};

static struct waiting waiting[WAITING_MAX];
static size_t waiting_count;

/* Sends on what the next node has room for. What it has no room for keeps its regions. */
static void send_on(void)
{
    hiroba_port_right to = {others[(me + 1) % nodes], HIROBA_PORT_COPY_SEND};
    while (waiting_count > 0) {
        struct waiting *first = &waiting[0];
        hiroba_port_message message = described(&first->label, first->regions);
        int result = hiroba_port_send(to, &message, 0);
        if (result == -ETIMEDOUT)
            return;
        must(result, "sending on");
        memmove(first, first + 1, --waiting_count * sizeof *first);
    }
}

static void take_out(hiroba_port_message *message, struct label label)
{
    if (waiting_count == WAITING_MAX)
        fail("too much to send on");
    struct waiting *last = &waiting[waiting_count++];
    label.hops--;
    last->label = label;
    for (size_t region = 0; region < message->region_count; region++) {
        size_t bytes = message->regions[region].bytes;
        void *start = bytes > 0 ? hiroba_port_region_take(message, region) : NULL;
        if (bytes > 0 && (start == NULL || hiroba_port_region_bytes(start) != bytes))
            fail("taking a region");
        last->regions[region] = (hiroba_port_region){start, bytes, bytes > 0};
    }
    hiroba_port_release(message);
}

static long expected(void)
{
    long count = 0;
    for (int sender = 0; sender < nodes; sender++) {
        for (long number = 0; number < messages; number++) {
            struct label label = {(uint64_t)sender, (uint64_t)number, 0};
            for (uint64_t hop = 0; hop <= hops_of(&label); hop++)
                count += (first_destination(&label) + (int)hop) % nodes == me;
        }
    }
    return count;
}

static void *receive(void *unused)
{
    static hiroba_port_message kept[KEPT_MAX];
    const size_t most = me == 0 ? (size_t)100 << 20 : (size_t)4 << 20;
    size_t count = 0, bytes = 0;
    for (long left = expected(); left > 0 || waiting_count > 0;) {
        hiroba_port_message message;
        send_on();
        int result = hiroba_port_receive(own, &message, HIROBA_PORT_ANY_SIZE, waiting_count > 0 ? 1000 : 100000);
        if (result == -ETIMEDOUT)
            continue;
        must(result, "receiving");
        left--;
        check(&message);
        struct label label;
        memcpy(&label, message.inline_data, sizeof label);
        if (label.hops > 0) {
            take_out(&message, label);
            continue;
        }
        for (size_t region = 0; region < message.region_count; region++)
            bytes += message.regions[region].bytes;
        kept[count++] = message;
        while (count == KEPT_MAX || bytes > most) {
            size_t which = mixed(bytes) % count;
            check(&kept[which]);
            for (size_t region = 0; region < kept[which].region_count; region++)
                bytes -= kept[which].regions[region].bytes;
            hiroba_port_release(&kept[which]);
            kept[which] = kept[--count];
        }
    }
    while (count > 0) {
        check(&kept[--count]);
        hiroba_port_release(&kept[count]);
    }
    return unused;
}

int main(int argc, char **argv)
{
    messages = argc > 1 ? strtol(argv[1], NULL, 10) : 20;
    must(hiroba_init(&argc, &argv), "hiroba_init");
    nodes = hiroba_nodes();
    me = hiroba_node();
    if (messages < 1 || nodes > NODES_MAX)
        return 2;
    char name[32];
    snprintf(name, sizeof name, "regions %d", me);
    must(hiroba_port_allocate(&own), "making a port");
    must(hiroba_port_register(name, own), "registering");
    for (int node = 0; node < nodes; node++) {
        snprintf(name, sizeof name, "regions %d", node);
        must(hiroba_port_look_up(name, &others[node], HIROBA_PORT_FOREVER), "looking up");
    }
    pthread_t receiver;
    if (pthread_create(&receiver, NULL, receive, NULL) != 0)
        return 1;
    for (long number = 0; number < messages; number++) {
        struct label label = {(uint64_t)me, (uint64_t)number, 0};
        label.hops = hops_of(&label);
        hiroba_port_region regions[REGIONS_MAX];
        for (size_t region = 0; region < region_count(&label); region++) {
            size_t bytes = region_bytes(&label, region);
            void *start = bytes > 0 ? hiroba_port_region_allocate(bytes) : NULL;
            if (bytes > 0 && start == NULL)
                fail("allocating");
            fill(&label, region, start, bytes);
            regions[region] = (hiroba_port_region){start, bytes, bytes > 0};
        }
        hiroba_port_message message = described(&label, regions);
        hiroba_port_right to = {others[first_destination(&label)], HIROBA_PORT_COPY_SEND};
        must(hiroba_port_send(to, &message, HIROBA_PORT_FOREVER), "sending");
    }
    pthread_join(receiver, NULL);
    hiroba_barrier();
    if (me == 0)
        printf("checks                   passed\n");
    hiroba_finalize();
    return 0;
}
