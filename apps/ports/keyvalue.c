/* A key-value store on node 0. A client requests a session and gets a send right to the session's own
 * port. When the client releases that right, or ends, the server gets a no-senders notification and
 * removes the session.
 *
 *     hiroba cc -O2 -pthread keyvalue.c -o keyvalue
 *     hiroba run -n 4 ./keyvalue [KEYS] */
#include <pthread.h>

#include "ports.h"

enum { OPEN = 1000, PUT, GET, DONE, MISSING, STOP };
enum { SESSIONS_MAX = 64, BUCKETS = 1021 };

struct pair {
    struct pair *next;
    char key[32];
    size_t bytes;
    unsigned char value[];
};

struct server {
    hiroba_port front;
    long sessions, ended;
};

static struct pair *buckets[BUCKETS];

static struct pair **find(const char *key)
{
    unsigned hash = 5381;
    for (const char *at = key; *at; at++)
        hash = hash * 33 + (unsigned char)*at;
    struct pair **place = &buckets[hash % BUCKETS];
    while (*place && strcmp((*place)->key, key) != 0)
        place = &(*place)->next;
    return place;
}

static void put(const char *key, const void *value, size_t bytes)
{
    struct pair **place = find(key);
    struct pair *pair = malloc(sizeof *pair + bytes);
    EXPECT(pair != NULL, "memory");
    pair->next = *place ? (*place)->next : NULL;
    snprintf(pair->key, sizeof pair->key, "%s", key);
    memcpy(pair->value, value, pair->bytes = bytes);
    free(*place);
    *place = pair;
}

static void open_session(struct server *server, hiroba_port set, const hiroba_port_message *request)
{
    hiroba_port session;
    MUST(hiroba_port_allocate(&session));
    hiroba_port_right right = make_send(session);
    hiroba_port_message reply;
    memset(&reply, 0, sizeof reply);
    reply.id = DONE;
    reply.rights = &right;
    reply.right_count = 1;
    MUST(answer(request, &reply));
    hiroba_port_right notify = {session, HIROBA_PORT_MAKE_SEND_ONCE};
    MUST(hiroba_port_request_notification(session, HIROBA_PORT_NOTIFY_NO_SENDERS, 1, notify, NULL));
    MUST(hiroba_port_move_member(session, set));
    server->sessions++;
}

static void *serve(void *argument)
{
    struct server *server = argument;
    hiroba_port set;
    MUST(hiroba_port_allocate_set(&set));
    MUST(hiroba_port_move_member(server->front, set));
    for (int stopping = 0; !stopping || server->ended < server->sessions;) {
        hiroba_port_message request, reply;
        MUST(hiroba_port_receive(set, &request, HIROBA_PORT_ANY_SIZE, HIROBA_PORT_FOREVER));
        memset(&reply, 0, sizeof reply);
        if (request.id == OPEN) {
            open_session(server, set, &request);
        } else if (request.id == STOP) {
            stopping = 1;
        } else if (request.id == HIROBA_PORT_ID_NO_SENDERS) {
            MUST(hiroba_port_destroy(request.port));
            server->ended++;
        } else if (request.id == PUT) {
            put(request.inline_data, request.regions[0].start, request.regions[0].bytes);
            reply.id = DONE;
            MUST(answer(&request, &reply));
        } else if (request.id == GET) {
            struct pair *pair = *find(request.inline_data);
            hiroba_port_region region = {pair ? pair->value : NULL, pair ? pair->bytes : 0, 0};
            reply.id = pair ? DONE : MISSING;
            reply.regions = &region;
            reply.region_count = pair != NULL;
            MUST(answer(&request, &reply));
        }
        hiroba_port_release(&request);
    }
    return NULL;
}

/* Sends a request about a key to the session. Returns the answer. */
static hiroba_port_message ask(hiroba_port session, hiroba_port reply_port, uint32_t id, const char *key,
                               const hiroba_port_region *value)
{
    hiroba_port_message request, reply;
    memset(&request, 0, sizeof request);
    request.id = id;
    request.inline_data = key;
    request.inline_bytes = strlen(key) + 1;
    request.regions = value;
    request.region_count = value != NULL;
    MUST(hiroba_port_rpc(copy_send(session), &request, reply_port, &reply, HIROBA_PORT_ANY_SIZE, HIROBA_PORT_FOREVER));
    return reply;
}

int main(int argc, char **argv)
{
    MUST(hiroba_init(&argc, &argv));
    int keys = argc > 1 ? atoi(argv[1]) : 200;
    struct server server = {HIROBA_PORT_NULL, 0, 0};
    pthread_t thread;
    if (hiroba_node() == 0) {
        MUST(hiroba_port_allocate(&server.front));
        MUST(hiroba_port_register("store", server.front));
        EXPECT(pthread_create(&thread, NULL, serve, &server) == 0, "a thread");
    }
    hiroba_port store, reply_port;
    MUST(hiroba_port_look_up("store", &store, HIROBA_PORT_FOREVER));
    MUST(hiroba_port_allocate(&reply_port));
    hiroba_port_message opened = ask(store, reply_port, OPEN, "", NULL);
    EXPECT(opened.right_count == 1 && opened.rights[0].kind == HIROBA_PORT_SEND, "a right to a session");
    hiroba_port session = opened.rights[0].name;
    hiroba_port_release(&opened);
    unsigned char value[3000];
    char key[32];
    for (int at = 0; at < keys; at++) {
        hiroba_port_region region = {value, (size_t)(1 + 37 * at % 2999), 0};
        memset(value, at + hiroba_node(), sizeof value);
        snprintf(key, sizeof key, "%d of %d", at, hiroba_node());
        hiroba_port_message reply = ask(session, reply_port, PUT, key, &region);
        EXPECT(reply.id == DONE, "a value put");
        hiroba_port_release(&reply);
    }
    hiroba_barrier();
    int other = (hiroba_node() + 1) % hiroba_nodes();
    for (int at = 0; at < keys; at++) {
        snprintf(key, sizeof key, "%d of %d", at, other);
        hiroba_port_message reply = ask(session, reply_port, GET, key, NULL);
        EXPECT(reply.id == DONE && reply.region_count == 1, "a value");
        EXPECT(reply.regions[0].bytes == (size_t)(1 + 37 * at % 2999), "a value of its length");
        memset(value, at + other, sizeof value);
        EXPECT(memcmp(reply.regions[0].start, value, reply.regions[0].bytes) == 0, "the value that was put");
        hiroba_port_release(&reply);
    }
    hiroba_port_message missing = ask(session, reply_port, GET, "nothing", NULL);
    EXPECT(missing.id == MISSING, "no value");
    hiroba_port_release(&missing);
    MUST(hiroba_port_deallocate(session));
    hiroba_barrier();
    if (hiroba_node() == 0) {
        hiroba_port_message stop;
        memset(&stop, 0, sizeof stop);
        stop.id = STOP;
        MUST(hiroba_port_send(copy_send(store), &stop, HIROBA_PORT_FOREVER));
        EXPECT(pthread_join(thread, NULL) == 0, "the thread's end");
        EXPECT(server.sessions == hiroba_nodes() && server.ended == server.sessions, "each session ended");
        printf("%ld sessions, %d keys each\n", server.sessions, keys);
        puts("checks                   passed");
    }
    hiroba_finalize();
    return 0;
}
