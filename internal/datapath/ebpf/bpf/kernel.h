// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later

// kernel.h declares the few kernel structures that the programs read. libbpf's relocations find the real offsets.

#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>

#define AF_INET6 10
#define IPPROTO_TCP 6

struct sock {
	__u8 sk_kern_sock : 1;
} __attribute__((preserve_access_index));

struct inet_sock {
	struct sock sk;
} __attribute__((preserve_access_index));

struct inet_connection_sock {
	struct inet_sock icsk_inet;
} __attribute__((preserve_access_index));

struct tcp_sock {
	struct inet_connection_sock inet_conn;
} __attribute__((preserve_access_index));
