package iptables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"

	"golang.org/x/sys/unix"
)

// What iptables-nft holds, told by handles: the kernel numbers each table, chain and rule,
// so that a rule more or less is a change of these; only one that is replaced keeps its
// number. To read them, and a sum of what the rules say, takes a tenth of the time of
// iptables-nft-save, which puts all that into words.
//
//	(ip, nat, KUBE-SVC-X) ── table 7, chain 23, rules 31, 32, 33 ──→ one digest
//	(ip, nat, PREROUTING, to KUBE-SERVICES) ── rule 12 ────────────→ one digest

// A spot is one chain of ours, or the rules in a chain of others that lead to one.
type spot struct {
	is4 bool
	in  chain
	to  string // the chain of ours; empty: the spot is itself one
}

// A digest stands for the handles at one spot.
type digest struct {
	chain uint64 // of the table and the chain
	rules uint64
	use   uint32 // rules in the chain and jumps to it: a rule more or less changes it
}

// handles are the digests of all spots.
type handles map[spot]digest

// differ are the spots at which two readings differ.
func (h handles) differ(o handles) map[spot]bool {
	all := map[spot]bool{}
	for s, v := range h {
		if w, ok := o[s]; !ok || v.chain != w.chain || v.rules != w.rules {
			all[s] = true
		}
	}
	for s := range o {
		if _, ok := h[s]; !ok {
			all[s] = true
		}
	}
	return all
}

// mix adds a number to a digest: another order makes another digest. (FNV's prime.)
func mix(digest, handle uint64) uint64 { return (digest ^ handle) * 1099511628211 }

// A tap reads handles over a socket of its own, which works in the network namespace of
// the thread that first used it.
type tap struct {
	fd   int // 0: not open
	buf  []byte
	seq  uint32
	salt maphash.Seed // of all digests
	torn bool         // a change came while an answer was read
}

// everyHandle reads all. Chains that are used as often as in like, if it is not nil, are
// taken to hold the same rules: that costs a tenth, and misses a rule that was replaced.
// A dump in which a change came may have missed something; on a node where somebody
// writes all the time the last one is taken as it is.
func (t *tap) everyHandle(like handles) (all handles, err error) {
	for range dumpTries {
		all, t.torn = make(handles, len(like)), false
		for _, is4 := range families() {
			for _, table := range []string{nat, filter} {
				if err := t.table(all, like, is4, table); err != nil {
					return nil, err
				}
			}
		}
		if !t.torn {
			break
		}
	}
	return all, nil
}

// someHandles reads those of some chains again.
func (t *tap) someHandles(all handles, which map[spot]bool) error {
	for s := range which {
		if !ours(s.in) {
			maps.DeleteFunc(all, func(o spot, _ digest) bool { return o.is4 == s.is4 && o.in == s.in })
			if err := t.rules(all, spot{is4: s.is4, in: s.in}); err != nil {
				return err
			}
			continue
		}
		delete(all, s)
		seed, err := t.tableHandle(s.is4, s.in.table)
		if err != nil {
			return err
		}
		about := append(attribute(unix.NFTA_CHAIN_TABLE, s.in.table), attribute(unix.NFTA_CHAIN_NAME, s.in.name)...)
		err = t.ask(unix.NFT_MSG_GETCHAIN, 0, s.is4, about, func(b []byte) error {
			_, _, d, err := chainOf(b, seed)
			all[s] = d
			return err
		})
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err == nil {
			err = t.rules(all, s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// table reads the handles of one table: its rules chain by chain, because the kernel walks
// from a dump's start for each piece of it, and takes seconds for 80,000 rules at once.
func (t *tap) table(all, like handles, is4 bool, table string) error {
	seed, err := t.tableHandle(is4, table)
	if err != nil {
		return err
	}
	var read []spot
	// Older kernels name the chains of all tables.
	err = t.ask(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, is4, attribute(unix.NFTA_CHAIN_TABLE, table), func(b []byte) error {
		in, name, is, err := chainOf(b, seed)
		if err != nil || string(in) != table {
			return err
		}
		s := spot{is4: is4, in: chain{table, string(name)}}
		if ours(s.in) {
			if was, ok := like[s]; ok && was.chain == is.chain && was.use == is.use {
				is.rules = was.rules
				all[s] = is
				return nil
			}
			all[s] = is
		}
		read = append(read, s)
		return nil
	})
	for i := 0; i < len(read) && err == nil; i++ {
		err = t.rules(all, read[i])
	}
	return err
}

// chainOf reads the table, the name and the digest of a chain.
func chainOf(b []byte, seed uint64) (in, name []byte, d digest, err error) {
	err = attributes(b, func(typ uint16, b []byte) {
		switch {
		case typ == unix.NFTA_CHAIN_TABLE:
			in = trim(b)
		case typ == unix.NFTA_CHAIN_NAME:
			name = trim(b)
		case typ == unix.NFTA_CHAIN_HANDLE && len(b) == 8:
			d.chain = mix(seed, binary.BigEndian.Uint64(b))
		case typ == unix.NFTA_CHAIN_USE && len(b) == 4:
			d.use = binary.BigEndian.Uint32(b)
		}
	})
	return in, name, d, err
}

// tableHandle is 0 if there is no such table.
func (t *tap) tableHandle(is4 bool, table string) (handle uint64, err error) {
	err = t.ask(unix.NFT_MSG_GETTABLE, 0, is4, attribute(unix.NFTA_TABLE_NAME, table), func(b []byte) error {
		return attributes(b, func(typ uint16, b []byte) {
			if typ == nftaTableHandle && len(b) == 8 {
				handle = binary.BigEndian.Uint64(b)
			}
		})
	})
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	return handle, err
}

// nftaTableHandle is NFTA_TABLE_HANDLE.
const nftaTableHandle = 4

// rules adds the rules of one chain: of one that is not ours, those that lead to ours.
func (t *tap) rules(all handles, s spot) error {
	about := append(attribute(unix.NFTA_RULE_TABLE, s.in.table), attribute(unix.NFTA_RULE_CHAIN, s.in.name)...)
	own := ours(s.in)
	err := t.ask(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, s.is4, about, func(b []byte) error {
		var exprs []byte
		var handle uint64
		err := attributes(b, func(typ uint16, b []byte) {
			switch {
			case typ == unix.NFTA_RULE_HANDLE && len(b) == 8:
				handle = binary.BigEndian.Uint64(b)
			case typ == unix.NFTA_RULE_EXPRESSIONS:
				exprs = b
			}
		})
		at := s
		if !own {
			if at.to = target(exprs); at.to == "" || !ours(chain{s.in.table, at.to}) {
				return err
			}
		}
		d := all[at]
		d.rules = mix(mix(d.rules, handle), t.content(exprs))
		all[at] = d
		return err
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// content tells rules from each other that have the same handle, as after iptables -R. What
// a rule has counted is left out.
func (t *tap) content(exprs []byte) (sum uint64) {
	// What makes no sense here is somebody's: other bytes make another sum all the same.
	_ = attributes(exprs, func(_ uint16, expr []byte) {
		counter := false
		_ = attributes(expr, func(typ uint16, b []byte) {
			counter = counter || typ == unix.NFTA_EXPR_NAME && string(trim(b)) == "counter"
		})
		if !counter {
			sum = mix(sum, maphash.Bytes(t.salt, expr))
		}
	})
	return sum
}

// target is the chain that a rule jumps to.
func target(exprs []byte) (name string) {
	deep := []uint16{unix.NFTA_LIST_ELEM, unix.NFTA_EXPR_DATA, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CHAIN}
	var walk func(b []byte, level int)
	walk = func(b []byte, level int) {
		// What is not so is some other expression.
		_ = attributes(b, func(typ uint16, b []byte) {
			switch {
			case typ != deep[level]:
			case level == len(deep)-1:
				name = string(trim(b))
			default:
				walk(b, level+1)
			}
		})
	}
	walk(exprs, 0)
	return name
}

// Sizes of what a message begins with, and of the kernel's answers.
const (
	nlmsghdr  = unix.NLMSG_HDRLEN
	nfgenmsg  = 4
	dumpBytes = 32 << 10
	dumpTries = 4
	nlaMask   = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
)

// ask sends one question and calls f with the attributes of each answer.
func (t *tap) ask(kind uint16, flags uint16, is4 bool, about []byte, f func([]byte) error) error {
	err := t.open()
	if err == nil {
		err = t.exchange(kind, flags, is4, about, f)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		t.close() // answers may be left unread
	}
	if err != nil {
		return fmt.Errorf("read handles of rules: %w", err)
	}
	return nil
}

func (t *tap) open() error {
	if t.fd != 0 {
		return nil
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	err = errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 30}))
	if err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	if t.salt == (maphash.Seed{}) {
		t.salt = maphash.MakeSeed()
	}
	t.fd, t.buf = fd, make([]byte, dumpBytes)
	return nil
}

func (t *tap) close() {
	if t.fd != 0 {
		_ = unix.Close(t.fd) // it was only read
		t.fd, t.buf = 0, nil
	}
}

func (t *tap) exchange(kind, flags uint16, is4 bool, about []byte, f func([]byte) error) error {
	family := byte(unix.NFPROTO_IPV6)
	if is4 {
		family = unix.NFPROTO_IPV4
	}
	if t.seq++; flags == 0 {
		flags = unix.NLM_F_ACK
	}
	e := binary.NativeEndian
	msg := e.AppendUint32(nil, uint32(nlmsghdr+nfgenmsg+len(about)))
	msg = e.AppendUint16(msg, unix.NFNL_SUBSYS_NFTABLES<<8|kind)
	msg = e.AppendUint16(msg, unix.NLM_F_REQUEST|flags)
	msg = e.AppendUint32(msg, t.seq)
	msg = append(e.AppendUint32(msg, 0), family, unix.NFNETLINK_V0, 0, 0)
	if err := unix.Sendto(t.fd, append(msg, about...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	for {
		n, _, err := unix.Recvfrom(t.fd, t.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if done, err := t.answers(t.buf[:n], f); done || err != nil {
			return err
		}
	}
}

// answers reads one datagram.
func (t *tap) answers(b []byte, f func([]byte) error) (done bool, err error) {
	e := binary.NativeEndian
	for len(b) >= nlmsghdr {
		size, typ, seq := int(e.Uint32(b)), e.Uint16(b[4:]), e.Uint32(b[8:])
		if size < nlmsghdr || size > len(b) {
			return false, fmt.Errorf("message of %d bytes in %d", size, len(b))
		}
		body := b[nlmsghdr:size]
		t.torn = t.torn || e.Uint16(b[6:])&unix.NLM_F_DUMP_INTR != 0
		b = b[min((size+3)&^3, len(b)):]
		switch {
		case seq != t.seq:
		case typ == unix.NLMSG_DONE, typ == unix.NLMSG_ERROR:
			if len(body) >= 4 {
				if code := int32(e.Uint32(body)); code != 0 {
					return true, unix.Errno(-code)
				}
			}
			return true, nil
		case len(body) >= nfgenmsg:
			if err := f(body[nfgenmsg:]); err != nil {
				return false, err
			}
		}
	}
	return false, nil
}

// attribute is one attribute with a text.
func attribute(typ uint16, text string) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(text)+1))
	b = append(binary.NativeEndian.AppendUint16(b, typ), text...)
	b = append(b, 0)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// attributes calls f for each attribute in b. It copies nothing.
func attributes(b []byte, f func(typ uint16, b []byte)) error {
	for len(b) >= 4 {
		size, typ := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if size < 4 || size > len(b) {
			return fmt.Errorf("attribute of %d bytes in %d", size, len(b))
		}
		f(typ&nlaMask, b[4:size])
		b = b[min((size+3)&^3, len(b)):]
	}
	return nil
}

// trim is a text attribute without its zero.
func trim(b []byte) []byte {
	if len(b) > 0 && b[len(b)-1] == 0 {
		return b[:len(b)-1]
	}
	return b
}
