/*
 * A node that writes much under locks, and never waits for another node, does not queue without bound. 24
 * releases of 16 MiB each, homed on another node, all arrive, and the writer's memory stays far below what it
 * has sent.
 */
#include "check.h"

enum { MIB = 1 << 20, REGION_BYTES = 16 * MIB, RELEASES = 24, RESIDENT_KIB_MAX = 256 * 1024 };

static long resident_kib_max(void)
{
    char line[256];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status != NULL, "cannot open /proc/self/status");
    while (fgets(line, sizeof line, status) != NULL)
        if (strncmp(line, "VmHWM:", 6) == 0)
            kib = atol(line + 6);
    fclose(status);
    return kib;
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    unsigned char *region = hiroba_alloc_at(REGION_BYTES, 0);
    CHECK(region != NULL, "no region: %s", hiroba_error_string());
    if (hiroba_node() == hiroba_nodes() - 1) {
        for (int release = 1; release <= RELEASES; release++) {
            hiroba_lock(0);
            memset(region, release, REGION_BYTES);
            hiroba_unlock(0);
        }
        CHECK(resident_kib_max() < RESIDENT_KIB_MAX, "%ld KiB were resident", resident_kib_max());
    }
    hiroba_barrier();
    for (size_t i = 0; i < REGION_BYTES; i += 1021)
        CHECK(region[i] == RELEASES, "byte %lu is %d", (unsigned long)i, region[i]);
    hiroba_finalize();
    return 0;
}
