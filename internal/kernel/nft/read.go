package nft

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/netlink"
)

// Attributes that x/sys/unix lacks: NFTA_SET_ELEM_KEY_END, NFTA_SET_ELEM_EXPRESSIONS.
const (
	nftaSetElemKeyEnd      = 10
	nftaSetElemExpressions = 11
)

// An Element is an element in the kernel. Key, Last, Data and Comment have the same meaning as in a Write.
type Element struct {
	Key, Last []byte
	Data      []byte // nil in a map of verdicts
	Comment   string
	End       bool          // the element is the end of an interval
	Expires   time.Duration // the time left; 0: the element does not expire
	// Packets and Bytes are the values of the element's counter, if the set has counters.
	Packets, Bytes uint64
}

// Elements calls f for each element of a set or map. It reads the whole set before the first call.
func (t *Table) Elements(ctx context.Context, set string, f func(Element) error) error {
	msgs, err := t.dumpElements(ctx, set)
	for i := 0; i < len(msgs) && err == nil; i++ {
		if err = ctx.Err(); err == nil {
			err = parseElements(msgs[i], f)
		}
		msgs[i] = nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", set, err)
	}
	return nil
}

// After many additions the kernel resizes a hash set in the background, for some milliseconds, and reorders its
// elements. A dump continues each page by the number of elements already sent. So a dump during a resize returns some
// elements twice and leaves others out. The kernel does not report this as an interruption, because nothing changed.
const (
	maxReordered   = 200
	reorderedPause = 10 * time.Millisecond
)

// errReordered says that the kernel reordered a set during each attempt to read it.
var errReordered = errors.New("the kernel reorders the set")

// dumpElements returns the messages of a dump that contains each element once.
func (t *Table) dumpElements(ctx context.Context, set string) (msgs [][]byte, err error) {
	attrs := netlink.AppendText(netlink.AppendText(nil, unix.NFTA_SET_ELEM_LIST_TABLE, t.name), unix.NFTA_SET_ELEM_LIST_SET, set)
	for range maxReordered {
		err = t.reader.dump(ctx, Inet, unix.NFT_MSG_GETSETELEM, attrs, func() { msgs = msgs[:0] }, func(b []byte) error {
			msgs = append(msgs, bytes.Clone(b))
			return nil
		})
		if err != nil || len(msgs) < 2 { // one message is one page: nothing could be reordered
			return msgs, err
		}
		var twice bool
		if twice, err = repeats(msgs); err != nil || !twice {
			return msgs, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(reorderedPause):
		}
	}
	return nil, errReordered
}

// repeats reports whether the messages have an element twice. It ignores sets with timeouts, because packets change
// them all the time.
func repeats(msgs [][]byte) (bool, error) {
	seen := map[uint64]struct{}{}
	twice, expires := false, false
	for _, m := range msgs {
		err := eachElement(m, func(b []byte) error {
			var h maphash.Hash
			h.SetSeed(hashSeed)
			err := netlink.Attributes(b, func(typ uint16, b []byte) error {
				switch typ {
				case unix.NFTA_SET_ELEM_KEY, nftaSetElemKeyEnd, unix.NFTA_SET_ELEM_FLAGS:
					_ = h.WriteByte(byte(typ)) // a hash never fails
					_, _ = h.Write(b)
				case unix.NFTA_SET_ELEM_EXPIRATION:
					expires = true
				}
				return nil
			})
			key := h.Sum64()
			_, known := seen[key]
			twice = twice || known
			seen[key] = struct{}{}
			return err
		})
		if err != nil || expires {
			return false, err
		}
	}
	return twice, nil
}

// list returns the chains of the table, or nil if there is no table.
func (t *Table) list(ctx context.Context) ([]Chain, error) { return t.listOf(ctx, t.name) }

// listOf is list for a table of another name.
func (t *Table) listOf(ctx context.Context, name string) ([]Chain, error) {
	_, there, err := t.reader.Table(ctx, Inet, name)
	if err != nil || !there {
		return nil, err
	}
	all := []Chain{}
	err = t.reader.Chains(ctx, Inet, name, func(c Chain) error {
		all = append(all, c)
		return nil
	})
	return all, err
}

// Chains returns the names of the table's chains. It returns none if there is no table.
func (t *Table) Chains(ctx context.Context) (map[string]bool, error) {
	all, err := t.list(ctx)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, c := range all {
		names[c.Name] = true
	}
	return names, nil
}

// Element reads the element with that key. there is false if the set has no such element.
func (t *Table) Element(ctx context.Context, set string, key []byte) (e Element, there bool, err error) {
	const nested, listElem = unix.NLA_F_NESTED, 1 // NFTA_LIST_ELEM
	attrs := netlink.AppendText(netlink.AppendText(nil, unix.NFTA_SET_ELEM_LIST_TABLE, t.name), unix.NFTA_SET_ELEM_LIST_SET, set)
	b := netlink.Append(nil, nested|unix.NFTA_SET_ELEM_KEY, netlink.Append(nil, unix.NFTA_DATA_VALUE, key))
	attrs = netlink.Append(attrs, nested|unix.NFTA_SET_ELEM_LIST_ELEMENTS, netlink.Append(nil, nested|listElem, b))
	_, err = t.reader.ask(ctx, Inet, unix.NFT_MSG_GETSETELEM, 0, attrs, func(b []byte) error {
		return parseElements(b, func(one Element) error {
			e, there = one, true
			e.Key, e.Data = slices.Clone(one.Key), slices.Clone(one.Data)
			return nil
		})
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	if err != nil {
		return e, false, fmt.Errorf("read an element of %s: %w", set, err)
	}
	return e, there, nil
}

// parseElements calls f for each element in the attributes of one message.
func parseElements(b []byte, f func(Element) error) error {
	return eachElement(b, func(b []byte) error {
		e, err := parseElement(b)
		if err != nil {
			return err
		}
		return f(e)
	})
}

// eachElement calls f with the attributes of each element, given the attributes of one message.
func eachElement(b []byte, f func([]byte) error) error {
	return netlink.Attributes(b, func(typ uint16, b []byte) error {
		if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return nil
		}
		return netlink.Attributes(b, func(_ uint16, b []byte) error { return f(b) })
	})
}

func parseElement(b []byte) (e Element, err error) {
	value := func(dst *[]byte) func(uint16, []byte) error {
		return func(typ uint16, b []byte) error {
			if typ == unix.NFTA_DATA_VALUE {
				*dst = b
			}
			return nil
		}
	}
	err = netlink.Attributes(b, func(typ uint16, b []byte) error {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			return netlink.Attributes(b, value(&e.Key))
		case nftaSetElemKeyEnd:
			return netlink.Attributes(b, value(&e.Last))
		case unix.NFTA_SET_ELEM_DATA:
			return netlink.Attributes(b, value(&e.Data))
		case unix.NFTA_SET_ELEM_FLAGS:
			e.End = len(b) == 4 && binary.BigEndian.Uint32(b)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		case unix.NFTA_SET_ELEM_EXPIRATION:
			if len(b) == 8 {
				// The kernel reports 0 in the last millisecond, but 0 means "does not expire" here.
				e.Expires = time.Duration(max(binary.BigEndian.Uint64(b), 1)) * time.Millisecond
			}
		case unix.NFTA_SET_ELEM_EXPR:
			return e.counter(b)
		case nftaSetElemExpressions:
			return netlink.Attributes(b, func(_ uint16, b []byte) error { return e.counter(b) })
		case unix.NFTA_SET_ELEM_USERDATA:
			e.Comment = comment(b, userdata.NFTNL_UDATA_SET_ELEM_COMMENT)
		}
		return nil
	})
	return e, err
}

// counter reads the values of the element's counter.
func (e *Element) counter(b []byte) error {
	return netlink.Attributes(b, func(typ uint16, b []byte) error {
		if typ != unix.NFTA_EXPR_DATA {
			return nil
		}
		return netlink.Attributes(b, func(typ uint16, b []byte) error {
			switch {
			case typ == unix.NFTA_COUNTER_PACKETS && len(b) == 8:
				e.Packets = binary.BigEndian.Uint64(b)
			case typ == unix.NFTA_COUNTER_BYTES && len(b) == 8:
				e.Bytes = binary.BigEndian.Uint64(b)
			}
			return nil
		})
	})
}
