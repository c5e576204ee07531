package ebpf

// The objects are committed, so a build needs no clang. "make generate" makes them again with Debian 12's clang 14.
// sources.sha256 has the hash of the C files that the objects were made from.

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -go-package ebpf -type node -type front -type addr -type slot_key -type slot -type endpoint -type note connect bpf/connect.c -- -O2 -g -mcpu=v3 -Wall -Werror -I/usr/include/x86_64-linux-gnu
//go:generate sh -c "cat bpf/kernel.h bpf/eject.h bpf/connect.c | sha256sum > sources.sha256"
