/*
 * Proves: the contents of a node's swap file are lost when the node is killed, and a changed file is
 * detected. Each node fills its own half of a region that is larger than its limit, so that part of it is in
 * the file. With "kill" node 1 then kills itself; with "change" it overwrites its swap file, which it finds
 * among its own descriptors, and reads all of its half. The second argument is the directory of --swap.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

enum { BYTES = 4 << 20, WORDS = BYTES / sizeof(uint64_t) };

/* Overwrites the unlinked file below the directory that this process has open. */
static void change_file(const char *directory)
{
    DIR *descriptors = opendir("/proc/self/fd");
    CHECK(descriptors != NULL, "/proc/self/fd cannot be read");
    int changed = 0;
    for (struct dirent *entry = readdir(descriptors); entry != NULL; entry = readdir(descriptors)) {
        char name[300], path[4096];
        snprintf(name, sizeof name, "/proc/self/fd/%s", entry->d_name);
        ssize_t length = readlink(name, path, sizeof path - 1);
        if (length < 0)
            continue;
        path[length] = '\0';
        if (strncmp(path, directory, strlen(directory)) != 0 || strstr(path, "(deleted)") == NULL)
            continue;
        int file = open(name, O_WRONLY);
        struct stat status;
        CHECK(file >= 0 && fstat(file, &status) == 0, "the swap file cannot be opened");
        CHECK((status.st_mode & 0777) == 0600 && status.st_nlink == 0, "the swap file can be had by others");
        CHECK(status.st_size > 0, "nothing has left for the swap file");
        for (off_t at = 0; at < status.st_size; at += 4096)
            CHECK(pwrite(file, "spoiled", 7, at) == 7, "the swap file cannot be written");
        close(file);
        changed++;
    }
    closedir(descriptors);
    CHECK(changed == 1, "there are %d swap files", changed);
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    CHECK(argc == 3 && hiroba_nodes() == 2, "expected 2 nodes and: kill|change DIR");
    uint64_t *halves[2];
    for (int node = 0; node < 2; node++) {
        halves[node] = hiroba_alloc_at(BYTES, node);
        CHECK(halves[node] != NULL, "hiroba_alloc_at failed");
    }
    uint64_t *mine = halves[hiroba_node()];
    for (size_t at = 0; at < WORDS; at++)
        mine[at] = at + 1;
    hiroba_barrier();
    if (hiroba_node() == 1) {
        if (strcmp(argv[1], "kill") == 0)
            kill(getpid(), SIGKILL);
        change_file(argv[2]);
        for (size_t at = 0; at < WORDS; at++)
            CHECK(mine[at] == at + 1, "word %lu is wrong", (unsigned long)at);
        CHECK(0, "what was changed has been believed");
    }
    hiroba_barrier();
    hiroba_finalize();
    return 0;
}
