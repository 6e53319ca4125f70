/*
 * Proves: what a process of a node that does not join can see of the job. A wrapper runs it, next to a
 * program that joins. It lists its descriptors, peeks at all data that arrive through the launcher's door,
 * until the door is closed, and prints how many bytes it saw. It is not a node.
 */
#define _DEFAULT_SOURCE
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(void)
{
    const char *name = getenv("HIROBA_CONTROL_FD");
    if (name == NULL)
        return 1;
    int door = atoi(name), others = 0;
    DIR *list = opendir("/proc/self/fd");
    if (list == NULL)
        return 1;
    for (struct dirent *entry; (entry = readdir(list)) != NULL;) {
        int number = atoi(entry->d_name);
        char path[64], target[4096] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", number);
        /* Pipes and devices belong to the process that started the launcher. */
        if (entry->d_name[0] == '.' || number <= 2 || number == door || number == dirfd(list) ||
            readlink(path, target, sizeof target - 1) < 0 || strncmp(target, "pipe:", 5) == 0 ||
            strncmp(target, "/dev/", 5) == 0)
            continue;
        others++;
    }
    closedir(list);
    long seen = 0;
    char bytes[200000];
    struct pollfd wait = {.fd = door, .events = POLLIN};
    /* The launcher closes its end when a process has joined. */
    for (int tries = 0; tries < 6000; tries++) {
        wait.revents = 0;
        poll(&wait, 1, 10);
        ssize_t got = recv(door, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
        if (got > 0)
            seen += got;
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            break;
    }
    printf("saw %ld bytes, %d other descriptors, closed %d\n", seen, others,
           (wait.revents & POLLHUP) != 0);
    return 0;
}
