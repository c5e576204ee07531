package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	fwnetlink "github.com/fairway-net/fairway/internal/netlink"
)

// dumpBuffer is how much of a dump we take at once, the kernel's own maximum. To send
// the next piece the kernel walks the set from its start, so that a dump in small
// pieces grows with the square: 50,000 Services took 2.5 s in pages of 4 KiB.
const dumpBuffer = 32 << 10

// maxDumps is how often a dump is begun in which a change came: such a dump may have
// missed something. The last one is taken as it is, because on a node where somebody
// writes all the time, no dump is left alone.
const maxDumps = 4

// Attributes that x/sys/unix lacks: NFTA_SET_ELEM_KEY_END, NFTA_SET_ELEM_EXPRESSIONS.
const (
	nftaSetElemKeyEnd      = 10
	nftaSetElemExpressions = 11
)

// An Element is one that was read. Key, Last, Data and Comment are set as in a Write.
type Element struct {
	Key, Last []byte
	Data      []byte // of a map of verdicts: nil
	Comment   string
	End       bool // it is the end of an interval
	// Expires is the rest of its time; 0: it stays.
	Expires time.Duration
	// Packets and Bytes are what its counter says, if the set has counters.
	Packets, Bytes uint64
}

// Elements calls f for each element of a set or map. It reads the whole set first.
func (t *Table) Elements(ctx context.Context, set string, f func(Element) error) error {
	msgs, err := t.dump(ctx, unix.NFT_MSG_GETSETELEM, []netlink.Attribute{
		{Type: unix.NFTA_SET_ELEM_LIST_TABLE, Data: []byte(t.name + "\x00")},
		{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: []byte(set + "\x00")},
	})
	if err != nil {
		return fmt.Errorf("read %s: %w", set, err)
	}
	for i, m := range msgs {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read %s: %w", set, err)
		}
		if err := parseElements(m, f); err != nil {
			return fmt.Errorf("read %s: %w", set, err)
		}
		msgs[i] = nil
	}
	return nil
}

// dump asks for all objects of a kind, and returns the attributes of each answer.
func (t *Table) dump(ctx context.Context, kind uint16, about []netlink.Attribute) (bodies [][]byte, err error) {
	attrs, err := netlink.MarshalAttributes(about)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		msgs, err := t.execute(ctx, kind, netlink.Dump, attrs)
		if err != nil {
			return nil, err
		}
		bodies = bodies[:0]
		whole := true
		for _, m := range msgs {
			whole = whole && m.Header.Flags&netlink.DumpInterrupted == 0
			if len(m.Data) < nfgenmsg {
				return nil, fmt.Errorf("message of %d bytes", len(m.Data))
			}
			bodies = append(bodies, m.Data[nfgenmsg:])
		}
		if whole || try == maxDumps {
			return bodies, nil
		}
	}
}

const nfgenmsg = 4 // size of struct nfgenmsg, which all messages begin with

// execute sends one question and returns the answers.
func (t *Table) execute(ctx context.Context, kind uint16, flags netlink.HeaderFlags, attrs []byte) (msgs []netlink.Message, err error) {
	if err := t.openAsk(); err != nil {
		return nil, err
	}
	err = fwnetlink.Within(ctx, t.ask, func() (err error) {
		msgs, err = t.ask.Execute(netlink.Message{
			Header: netlink.Header{
				Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind),
				Flags: netlink.Request | flags,
			},
			Data: append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, attrs...),
		})
		return err
	})
	if err != nil {
		t.closeAsk() // answers may be left unread
	}
	return msgs, err
}

// chain is one chain of the table.
type chain struct {
	name string
	hook bool // packets come to it by themselves
}

// list returns the chains of the table; nil if there is no table.
func (t *Table) list(ctx context.Context) ([]chain, error) {
	there, err := t.exists(ctx)
	if err != nil || !there {
		return nil, err
	}
	msgs, err := t.dump(ctx, unix.NFT_MSG_GETCHAIN, nil)
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	all := []chain{}
	for _, m := range msgs {
		var c chain
		ours := false
		err := nested(m, func(typ uint16, b []byte) error {
			switch typ {
			case unix.NFTA_CHAIN_TABLE:
				ours = text(b) == t.name
			case unix.NFTA_CHAIN_NAME:
				c.name = text(b)
			case unix.NFTA_CHAIN_HOOK:
				c.hook = true
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list chains: %w", err)
		}
		if ours {
			all = append(all, c)
		}
	}
	return all, nil
}

// exists reports whether the table is in the kernel.
func (t *Table) exists(ctx context.Context) (bool, error) {
	attrs, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NFTA_TABLE_NAME, Data: []byte(t.name + "\x00")}})
	if err != nil {
		return false, err
	}
	_, err = t.execute(ctx, unix.NFT_MSG_GETTABLE, 0, attrs)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for table %s: %w [needs root and a kernel with nf_tables]", t.name, err)
	}
	return true, nil
}

// Chains returns the names of the chains in the table; none if there is no table.
func (t *Table) Chains(ctx context.Context) (map[string]bool, error) {
	all, err := t.list(ctx)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, c := range all {
		names[c.name] = true
	}
	return names, nil
}

// sets returns the names of the sets and maps in the table, and whether each is a map.
// Those without a name of their own are left out: they go with their rule.
func (t *Table) sets(ctx context.Context) (map[string]bool, error) {
	const anonymous, aMap = unix.NFT_SET_ANONYMOUS, unix.NFT_SET_MAP
	msgs, err := t.dump(ctx, unix.NFT_MSG_GETSET, []netlink.Attribute{{Type: unix.NFTA_SET_TABLE, Data: []byte(t.name + "\x00")}})
	if err != nil {
		return nil, fmt.Errorf("list sets: %w", err)
	}
	all := map[string]bool{}
	for _, m := range msgs {
		var name string
		var flags uint32
		err := nested(m, func(typ uint16, b []byte) error {
			switch {
			case typ == unix.NFTA_SET_NAME:
				name = text(b)
			case typ == unix.NFTA_SET_FLAGS && len(b) == 4:
				flags = binary.BigEndian.Uint32(b)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list sets: %w", err)
		}
		if flags&anonymous == 0 {
			all[name] = flags&aMap != 0
		}
	}
	return all, nil
}

// text is a string attribute without its zero.
func text(b []byte) string {
	if len(b) > 0 && b[len(b)-1] == 0 {
		b = b[:len(b)-1]
	}
	return string(b)
}

// parseElements calls f for each element in the attributes of one message.
func parseElements(b []byte, f func(Element) error) error {
	return nested(b, func(typ uint16, b []byte) error {
		if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return nil
		}
		return nested(b, func(_ uint16, b []byte) error {
			e, err := parseElement(b)
			if err != nil {
				return err
			}
			return f(e)
		})
	})
}

func parseElement(b []byte) (e Element, err error) {
	value := func(into *[]byte) func(uint16, []byte) error {
		return func(typ uint16, b []byte) error {
			if typ == unix.NFTA_DATA_VALUE {
				*into = b
			}
			return nil
		}
	}
	err = nested(b, func(typ uint16, b []byte) error {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			return nested(b, value(&e.Key))
		case nftaSetElemKeyEnd:
			return nested(b, value(&e.Last))
		case unix.NFTA_SET_ELEM_DATA:
			return nested(b, value(&e.Data))
		case unix.NFTA_SET_ELEM_FLAGS:
			e.End = len(b) == 4 && binary.BigEndian.Uint32(b)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		case unix.NFTA_SET_ELEM_EXPIRATION:
			if len(b) == 8 {
				// The kernel says 0 in the last moment: such an entry must not stay for ever.
				e.Expires = time.Duration(max(binary.BigEndian.Uint64(b), 1)) * time.Millisecond
			}
		case unix.NFTA_SET_ELEM_EXPR:
			return e.counter(b)
		case nftaSetElemExpressions:
			return nested(b, func(_ uint16, b []byte) error { return e.counter(b) })
		case unix.NFTA_SET_ELEM_USERDATA:
			e.Comment, _ = userdata.GetString(b, userdata.NFTNL_UDATA_SET_ELEM_COMMENT)
		}
		return nil
	})
	return e, err
}

// counter takes what an element's counter says.
func (e *Element) counter(b []byte) error {
	return nested(b, func(typ uint16, b []byte) error {
		if typ != unix.NFTA_EXPR_DATA {
			return nil
		}
		return nested(b, func(typ uint16, b []byte) error {
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

// nested calls f for each attribute in b.
func nested(b []byte, f func(typ uint16, b []byte) error) error {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return err
	}
	for ad.Next() {
		if err := f(ad.Type(), ad.Bytes()); err != nil {
			return err
		}
	}
	return ad.Err()
}
