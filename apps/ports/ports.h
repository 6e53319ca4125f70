/* What the programs of this directory share: macros that end the program when a call fails, and short
 * forms. */
#ifndef PORTS_H
#define PORTS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiroba.h>
#include <hiroba_port.h>

/* Ends the program with a message unless the condition holds. */
#define EXPECT(condition, what)                                                                                        \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: node %d: %s; last error: %s\n", __FILE__, __LINE__, hiroba_node(), what,           \
                    hiroba_error_string());                                                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Ends the program unless a call of the interface has succeeded. */
#define MUST(call) EXPECT((call) == 0, #call)

static inline hiroba_port_right copy_send(hiroba_port name)
{
    hiroba_port_right right = {name, HIROBA_PORT_COPY_SEND};
    return right;
}

static inline hiroba_port_right make_send(hiroba_port name)
{
    hiroba_port_right right = {name, HIROBA_PORT_MAKE_SEND};
    return right;
}

/* Answers a request with the right that came with it, and consumes the right. */
static inline int answer(const hiroba_port_message *request, const hiroba_port_message *message)
{
    hiroba_port_right right = {request->reply.name, HIROBA_PORT_MOVE_SEND_ONCE};
    return hiroba_port_send(right, message, HIROBA_PORT_FOREVER);
}

#endif
