/* Ports, call by call: the message for each mistake, time-outs, size limits, sets, notifications, receive
 * rights that move with their messages, regions that are moved, and names on other nodes. */
#include <errno.h>

#include <hiroba_port.h>

#include "check.h"

#define IS(call, expected)                                                                                             \
    do {                                                                                                               \
        int result = (call);                                                                                           \
        CHECK(result == (expected), "%s is %d: %s", #call, result, hiroba_error_string());                             \
    } while (0)

static const hiroba_port_message EMPTY;

static hiroba_port_right right(hiroba_port name, int kind)
{
    hiroba_port_right right = {name, kind};
    return right;
}

static hiroba_port port_with_send(void)
{
    hiroba_port port;
    IS(hiroba_port_allocate(&port), 0);
    IS(hiroba_port_insert_right(port, right(port, HIROBA_PORT_MAKE_SEND)), 0);
    return port;
}

static int receive(hiroba_port from, hiroba_port_message *message)
{
    return hiroba_port_receive(from, message, HIROBA_PORT_ANY_SIZE, HIROBA_PORT_NO_WAIT);
}

static void mistakes(void)
{
    hiroba_port port = port_with_send(), name;
    hiroba_port_message message = EMPTY;
    IS(hiroba_port_destroy(12345), -EBADF);
    IS(hiroba_port_destroy(HIROBA_PORT_NULL), -EBADF);
    IS(hiroba_port_allocate(NULL), -EINVAL);
    IS(hiroba_port_send(right(port, 77), &EMPTY, 0), -EINVAL);
    IS(hiroba_port_send(right(port, HIROBA_PORT_COPY_SEND), NULL, 0), -EINVAL);
    IS(hiroba_port_send(right(port, HIROBA_PORT_COPY_SEND), &EMPTY, -7), -EINVAL);
    IS(hiroba_port_send(right(port, HIROBA_PORT_MOVE_SEND_ONCE), &EMPTY, 0), -EPERM);
    message.inline_bytes = 4;
    IS(hiroba_port_send(right(port, HIROBA_PORT_COPY_SEND), &message, 0), -EINVAL);
    hiroba_port_type type = {1, 4, 2};
    message.inline_data = "four";
    message.types = &type;
    message.type_count = 1;
    IS(hiroba_port_send(right(port, HIROBA_PORT_COPY_SEND), &message, 0), -EBADMSG);
    char stack[4];
    hiroba_port_region region = {stack, sizeof stack, 1};
    message = EMPTY;
    message.regions = &region;
    message.region_count = 1;
    IS(hiroba_port_send(right(port, HIROBA_PORT_COPY_SEND), &message, 0), -EINVAL);
    hiroba_port_right forged = right(port + 1, HIROBA_PORT_COPY_SEND);
    message = EMPTY;
    message.rights = &forged;
    message.right_count = 1;
    IS(hiroba_port_send(right(port, HIROBA_PORT_COPY_SEND), &message, 0), -EBADF);
    IS(hiroba_port_mod_refs(port, 70000), -EOVERFLOW);
    IS(hiroba_port_set_queue_limit(port, 0), -EINVAL);
    IS(hiroba_port_move_member(port, port), -EPERM);
    IS(hiroba_port_look_up("no such thing", &name, HIROBA_PORT_NO_WAIT), -ENOENT);
    IS(hiroba_port_look_up("no such thing", &name, 2000), -ETIMEDOUT);
    IS(hiroba_port_look_up("", &name, 0), -EINVAL);
    IS(hiroba_port_withdraw("no such thing"), -ENOENT);
    IS(receive(port, &message), -ETIMEDOUT);
    IS(hiroba_port_receive(port, &message, 10, 1000), -ETIMEDOUT);
    CHECK(strstr(hiroba_error_string(), "hiroba_port_receive") != NULL, "%s", hiroba_error_string());
    IS(hiroba_port_destroy(port), 0);
    IS(hiroba_port_deallocate(port), -EBADF);
}

static void queues(void)
{
    hiroba_port port = port_with_send();
    hiroba_port_message message = EMPTY, received;
    IS(hiroba_port_set_queue_limit(port, 2), 0);
    message.inline_data = "0123456789";
    message.inline_bytes = 10;
    for (message.id = 0; message.id < 2; message.id++)
        IS(hiroba_port_send(right(port, HIROBA_PORT_COPY_SEND), &message, HIROBA_PORT_NO_WAIT), 0);
    IS(hiroba_port_send(right(port, HIROBA_PORT_COPY_SEND), &message, HIROBA_PORT_NO_WAIT), -ETIMEDOUT);
    IS(hiroba_port_send(right(port, HIROBA_PORT_COPY_SEND), &message, 2000), -ETIMEDOUT);
    hiroba_port_right notify = right(port, HIROBA_PORT_MAKE_SEND_ONCE);
    IS(hiroba_port_send_notify(right(port, HIROBA_PORT_COPY_SEND), &message, notify), 1);
    IS(hiroba_port_send_notify(right(port, HIROBA_PORT_COPY_SEND), &message, notify), -EALREADY);
    IS(hiroba_port_receive(port, &received, 9, HIROBA_PORT_NO_WAIT), -ENOBUFS);
    int accepted = 0;
    for (uint32_t next = 0; next < 3;) {
        IS(receive(port, &received), 0);
        if (received.id == HIROBA_PORT_ID_MESSAGE_ACCEPTED) {
            accepted++;
        } else {
            CHECK(received.id == next, "message %u came as the %u-th", received.id, next);
            CHECK(received.inline_bytes == 10 && !memcmp(received.inline_data, "0123456789", 10), "other data");
            next++;
        }
        hiroba_port_release(&received);
    }
    if (!accepted) {
        IS(receive(port, &received), 0);
        CHECK(received.id == HIROBA_PORT_ID_MESSAGE_ACCEPTED, "message %u", received.id);
        hiroba_port_release(&received);
    }
    hiroba_port_status status;
    IS(hiroba_port_get_status(port, &status), 0);
    CHECK(status.receive && status.send == 1 && status.limit == 2 && status.queued == 0, "another status");
    IS(hiroba_port_destroy(port), 0);
}

static void notifications(void)
{
    hiroba_port port = port_with_send(), told = port_with_send(), once;
    hiroba_port_message received;
    IS(hiroba_port_extract_right(right(port, HIROBA_PORT_MAKE_SEND_ONCE), &once), 0);
    hiroba_port_right notify = right(told, HIROBA_PORT_MAKE_SEND_ONCE);
    IS(hiroba_port_request_notification(once, HIROBA_PORT_NOTIFY_DEAD_NAME, 0, notify, NULL), 0);
    IS(hiroba_port_request_notification(port, HIROBA_PORT_NOTIFY_NO_SENDERS, 1, notify, NULL), 0);
    IS(hiroba_port_request_notification(port, 9, 1, notify, NULL), -EINVAL);
    IS(receive(told, &received), -ETIMEDOUT);
    IS(hiroba_port_mod_refs(port, -1), 0);
    IS(receive(told, &received), 0);
    CHECK(received.id == HIROBA_PORT_ID_NO_SENDERS && received.inline_bytes == 8, "message %u", received.id);
    hiroba_port_release(&received);
    IS(hiroba_port_destroy(port), 0);
    IS(receive(told, &received), 0);
    CHECK(received.id == HIROBA_PORT_ID_DEAD_NAME, "message %u", received.id);
    CHECK(!memcmp(received.inline_data, &once, sizeof once), "the name that died");
    hiroba_port_release(&received);
    IS(hiroba_port_send(right(once, HIROBA_PORT_MOVE_SEND_ONCE), &EMPTY, 0), -EPIPE);
    IS(hiroba_port_destroy(once), 0);
    IS(hiroba_port_destroy(told), 0);
}

/* A region moves without a copy, also on to another message. */
static void regions(void)
{
    hiroba_port port = port_with_send();
    size_t bytes = 3 << 20;
    unsigned char *start = hiroba_port_region_allocate(bytes);
    CHECK(start != NULL && start[0] == 0 && start[bytes - 1] == 0, "a region");
    memset(start, 7, bytes);
    for (int time = 0; time < 2; time++) {
        hiroba_port_region region = {start, bytes, 1};
        hiroba_port_message message = EMPTY, received;
        message.regions = &region;
        message.region_count = 1;
        IS(hiroba_port_send(right(port, HIROBA_PORT_COPY_SEND), &message, 0), 0);
        IS(receive(port, &received), 0);
        CHECK(received.region_count == 1 && received.regions[0].bytes == bytes, "another region");
        CHECK(received.regions[0].start == start, "a region that moved is where it was");
        CHECK(hiroba_port_region_take(&received, 1) == NULL && errno == EINVAL, "no such region");
        start = hiroba_port_region_take(&received, 0);
        CHECK(start != NULL && start[0] == 7 && start[bytes - 1] == 7, "other bytes");
        CHECK(hiroba_port_region_take(&received, 0) == NULL, "a region is taken once");
        hiroba_port_release(&received);
    }
    hiroba_port_region_free(start);
    hiroba_port_region_free(NULL);
    IS(hiroba_port_destroy(port), 0);
}

/* A region of a message that is not taken belongs to the sender again, at its place and with its contents. */
static void regions_come_back(void)
{
    hiroba_port port = port_with_send(), waiting = port_with_send();
    const size_t bytes = 3 << 12;
    unsigned char *first = hiroba_port_region_allocate(bytes), *second = hiroba_port_region_allocate(1);
    CHECK(first != NULL && second != NULL, "regions");
    first[bytes - 1] = 7;
    hiroba_port_region both[2] = {{first, bytes, 1}, {second, 2, 1}};
    hiroba_port_message message = EMPTY, received;
    message.regions = both;
    message.region_count = 2;
    hiroba_port_right to = right(port, HIROBA_PORT_COPY_SEND);
    IS(hiroba_port_send(to, &message, HIROBA_PORT_NO_WAIT), -EINVAL); /* the second is shorter */
    CHECK(hiroba_port_region_bytes(first) == bytes, "what stands before a mistake comes back");
    both[1].bytes = 1;
    IS(hiroba_port_send(right(12345, HIROBA_PORT_COPY_SEND), &message, HIROBA_PORT_NO_WAIT), -EBADF);
    IS(hiroba_port_rpc(right(port, HIROBA_PORT_MOVE_SEND_ONCE), &message, waiting, &received, 0, 1000), -EPERM);
    IS(hiroba_port_set_queue_limit(port, 1), 0);
    IS(hiroba_port_send(to, &EMPTY, HIROBA_PORT_NO_WAIT), 0);
    IS(hiroba_port_send(to, &message, HIROBA_PORT_NO_WAIT), -ETIMEDOUT);
    IS(hiroba_port_send(to, &message, 2000), -ETIMEDOUT);
    IS(hiroba_port_rpc(to, &message, waiting, &received, HIROBA_PORT_ANY_SIZE, 2000), -ETIMEDOUT);
    CHECK(hiroba_port_region_bytes(first) == bytes && hiroba_port_region_bytes(second) == 1, "both come back");
    CHECK(first[0] == 0 && first[bytes - 1] == 7, "what was in a region");
    IS(receive(port, &received), 0);
    hiroba_port_release(&received);
    IS(hiroba_port_rpc(to, &message, waiting, &received, HIROBA_PORT_ANY_SIZE, 2000), -ETIMEDOUT);
    CHECK(hiroba_port_region_bytes(first) == 0 && hiroba_port_region_bytes(second) == 0, "the request went");
    IS(receive(port, &received), 0);
    CHECK(received.region_count == 2 && received.regions[0].start == first, "the regions that went");
    hiroba_port_release(&received);
    IS(hiroba_port_destroy(port), 0);
    IS(hiroba_port_destroy(waiting), 0);
}

/* A port moves from node to node with the messages in its queue, and senders follow it. Shared memory
 * written before a message is sent is seen where the message is received. */
static void moving(void)
{
    int node = hiroba_node(), nodes = hiroba_nodes();
    long *shared = hiroba_alloc(64 * sizeof *shared);
    hiroba_port in, next, baton = HIROBA_PORT_NULL;
    char name[32];
    IS(hiroba_port_allocate(&in), 0);
    snprintf(name, sizeof name, "in %d", node);
    IS(hiroba_port_register(name, in), 0);
    snprintf(name, sizeof name, "in %d", (node + 1) % nodes);
    IS(hiroba_port_look_up(name, &next, HIROBA_PORT_FOREVER), 0);
    if (node == 0) {
        IS(hiroba_port_allocate(&baton), 0);
        IS(hiroba_port_set_queue_limit(baton, 64), 0);
        IS(hiroba_port_register("baton", baton), 0);
    }
    hiroba_port to_baton;
    IS(hiroba_port_look_up("baton", &to_baton, HIROBA_PORT_FOREVER), 0);
    hiroba_barrier();
    /* Every node writes, and sends a message to the port, which is moving meanwhile. */
    hiroba_port_message message = EMPTY, received;
    for (int time = 0; time < 3; time++) {
        shared[3 * node + time] = 100 * node + time + 1;
        message.id = 1000 + (uint32_t)(3 * node + time);
        IS(hiroba_port_send(right(to_baton, HIROBA_PORT_COPY_SEND), &message, HIROBA_PORT_FOREVER), 0);
        if ((time == 1 && node == 0) || (time == 1 && node > 0)) {
            if (node > 0) {
                hiroba_port_message brought;
                IS(hiroba_port_receive(in, &brought, HIROBA_PORT_ANY_SIZE, HIROBA_PORT_FOREVER), 0);
                CHECK(brought.right_count == 1 && brought.rights[0].kind == HIROBA_PORT_RECEIVE, "no port");
                baton = brought.rights[0].name;
                hiroba_port_release(&brought);
            }
            hiroba_port_right moved = right(baton, HIROBA_PORT_MOVE_RECEIVE);
            hiroba_port_message move = EMPTY;
            move.rights = &moved;
            move.right_count = 1;
            IS(hiroba_port_send(right(next, HIROBA_PORT_COPY_SEND), &move, HIROBA_PORT_FOREVER), 0);
        }
    }
    if (node == 0) {
        IS(hiroba_port_receive(in, &received, HIROBA_PORT_ANY_SIZE, HIROBA_PORT_FOREVER), 0);
        baton = received.rights[0].name;
        hiroba_port_release(&received);
        for (int count = 0; count < 3 * nodes; count++) {
            IS(hiroba_port_receive(baton, &received, HIROBA_PORT_ANY_SIZE, HIROBA_PORT_FOREVER), 0);
            int which = (int)received.id - 1000;
            CHECK(received.sender == which / 3, "a message of node %d", received.sender);
            long value = shared[which];
            CHECK(value == 100 * (which / 3) + which % 3 + 1, "word %d is %ld when its message has come", which, value);
            hiroba_port_release(&received);
        }
        IS(hiroba_port_destroy(baton), 0);
    }
    hiroba_barrier();
}

int main(int argc, char **argv)
{
    hiroba_port name;
    IS(hiroba_port_allocate(&name), -EPERM);
    join(&argc, &argv);
    mistakes();
    queues();
    notifications();
    regions();
    regions_come_back();
    moving();
    hiroba_finalize();
    return 0;
}
