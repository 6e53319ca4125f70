/*
 * Proves: a pointer has the same meaning on every node. Nodes take turns to build one linked list and one
 * search tree out of memory from different nodes. Then every node walks them, and one takes the list apart.
 */
#include <stdint.h>

#include "check.h"

struct item {
    uint32_t key, creator;
    struct item *next;           /* of the list, newest first */
    struct item *left, *right;   /* of the tree, by key */
};

struct roots {
    struct item *list, *tree;
    uint32_t count;
};

enum { LOCK = 5, ITEMS = 200 };

static uint32_t key_of(uint32_t creator, uint32_t i)
{
    return (creator * ITEMS + i) * 2654435761u; /* odd factor: all keys differ */
}

static void insert(struct roots *roots, uint32_t creator, uint32_t key)
{
    struct item *item = (struct item *)hiroba_calloc(1, sizeof *item);
    CHECK(item != NULL, "no memory for an item");
    item->key = key;
    item->creator = creator;
    hiroba_lock(LOCK);
    item->next = roots->list;
    roots->list = item;
    struct item **place = &roots->tree;
    while (*place != NULL)
        place = key < (*place)->key ? &(*place)->left : &(*place)->right;
    *place = item;
    roots->count++;
    hiroba_unlock(LOCK);
}

static int found(const struct item *tree, uint32_t key, uint32_t creator)
{
    while (tree != NULL && tree->key != key)
        tree = key < tree->key ? tree->left : tree->right;
    return tree != NULL && tree->creator == creator;
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    uint32_t node = (uint32_t)hiroba_node(), nodes = (uint32_t)hiroba_nodes();
    struct roots *roots = (struct roots *)shared(sizeof *roots);

    for (uint32_t i = 0; i < ITEMS; i++)
        insert(roots, node, key_of(node, i));
    hiroba_barrier();

    uint32_t count = 0, sum = 0, wanted = 0;
    for (const struct item *item = roots->list; item != NULL; item = item->next) {
        count++;
        sum += item->key;
        CHECK(count <= nodes * ITEMS, "the list does not end");
    }
    for (uint32_t creator = 0; creator < nodes; creator++)
        for (uint32_t i = 0; i < ITEMS; i++) {
            wanted += key_of(creator, i);
            CHECK(found(roots->tree, key_of(creator, i), creator),
                  "item %u of node %u is not in the tree", (unsigned)i, (unsigned)creator);
        }
    CHECK(count == nodes * ITEMS && roots->count == count && sum == wanted,
          "the list has %u items of %u, their keys sum to %u, not %u", (unsigned)count,
          (unsigned)roots->count, (unsigned)sum, (unsigned)wanted);
    hiroba_barrier();

    if (node == nodes - 1)
        while (roots->list != NULL) {
            struct item *item = roots->list;
            roots->list = item->next;
            hiroba_free(item);
        }
    hiroba_barrier();
    CHECK(roots->list == NULL, "the list was not taken apart");
    hiroba_finalize();
    return 0;
}
