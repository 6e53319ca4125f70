// A program of C++ that makes a locale other than "C", whose objects refer to data of one node.

#include <iostream>
#include <locale>
#include <thread>

int main() {
    std::thread([] { std::cout << std::locale("C.UTF-8").name() << std::endl; }).join();
    return 0;
}
