package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"

	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	fwnetlink "github.com/fairway-net/fairway/internal/netlink"
)

// A Family is one of nf_tables' families of tables.
type Family uint8

// The families. Any is for questions about all of them.
const (
	Any  Family = unix.NFPROTO_UNSPEC
	Inet Family = unix.NFPROTO_INET
	IPv4 Family = unix.NFPROTO_IPV4
	IPv6 Family = unix.NFPROTO_IPV6
)

// String returns the family as the program nft names it.
func (f Family) String() string {
	switch f {
	case Inet:
		return "inet"
	case IPv4:
		return "ip"
	case IPv6:
		return "ip6"
	}
	return fmt.Sprintf("family %d", uint8(f))
}

// dumpBuffer is how much of a dump we take at once, the kernel's own maximum. To send
// the next piece the kernel walks the set from its start, so that a dump in small
// pieces grows with the square: 50,000 Services took 2.5 s in pages of 4 KiB.
const dumpBuffer = 32 << 10

// maxDumps is how often a dump is begun in which a change came: such a dump may have
// missed something. The last one is taken as it is, because on a node where another
// program writes all the time, no dump is undisturbed.
const maxDumps = 4

// A Reader asks the kernel about tables of any family, also those of other programs. It
// works in the network namespace of the thread that first asked, until Close, and belongs
// to one goroutine. The zero value is ready.
type Reader struct {
	conn    *netlink.Conn // nil: not open
	bounded bool          // within Do
}

// A Chain is one chain of a table.
type Chain struct {
	Name   string
	Handle uint64
	Use    uint32 // rules in it, and jumps to it
	Table  string // set if the chains of all tables were asked for
	// Base says that packets come to it by themselves, at the hook of that number.
	Base bool
	Hook uint32
	Drop bool // its policy
}

// A Rule is one rule of a chain.
type Rule struct {
	Chain   string
	Handle  uint64
	Comment string
	// Hash is of its handle and its expressions, but for what they have counted. The kernel
	// uses a handle again for a rule that replaces another. It is another one in each process.
	Hash        uint64
	expressions []byte
}

// hashSeed is that of all Rules' hashes.
var hashSeed = maphash.MakeSeed()

// Close closes the socket. A closed Reader may be used again.
func (r *Reader) Close() {
	if r.conn != nil {
		_ = r.conn.Close() // it was only read
		r.conn = nil
	}
}

// Do calls f, which asks many small questions: they share one deadline, which costs less
// than one for each.
func (r *Reader) Do(ctx context.Context, f func() error) error {
	if err := r.open(); err != nil {
		return err
	}
	err := fwnetlink.Within(ctx, r.conn, func() error {
		r.bounded = true
		defer func() { r.bounded = false }()
		return f()
	})
	if err != nil {
		r.Close() // answers may be left unread
	}
	return err
}

func (r *Reader) open() error {
	if r.conn != nil {
		return nil
	}
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{MessageBufferSize: dumpBuffer})
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	r.conn = c
	return nil
}

// execute sends one question and returns the answers.
func (r *Reader) execute(ctx context.Context, f Family, kind uint16, flags netlink.HeaderFlags, attrs []byte) (msgs []netlink.Message, err error) {
	if err := r.open(); err != nil {
		return nil, err
	}
	ask := func() (err error) {
		msgs, err = r.conn.Execute(netlink.Message{
			Header: netlink.Header{
				Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind),
				Flags: netlink.Request | flags,
			},
			Data: append([]byte{byte(f), unix.NFNETLINK_V0, 0, 0}, attrs...),
		})
		return err
	}
	if r.bounded {
		err = ask()
	} else {
		err = fwnetlink.Within(ctx, r.conn, ask)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		r.Close() // answers may be left unread
	}
	return msgs, err
}

// dump asks for all objects of a kind, and returns the attributes of each answer.
func (r *Reader) dump(ctx context.Context, f Family, kind uint16, attrs []byte) (bodies [][]byte, err error) {
	for try := 1; ; try++ {
		msgs, err := r.execute(ctx, f, kind, netlink.Dump, attrs)
		if err != nil {
			return nil, err
		}
		bodies = bodies[:0]
		whole := true
		for _, m := range msgs {
			whole = whole && m.Header.Flags&netlink.DumpInterrupted == 0
			b, err := body(m)
			if err != nil {
				return nil, err
			}
			bodies = append(bodies, b)
		}
		if whole || try == maxDumps {
			return bodies, nil
		}
	}
}

const nfgenmsg = 4 // size of struct nfgenmsg, which all messages begin with

// body returns the attributes of an answer.
func body(m netlink.Message) ([]byte, error) {
	if len(m.Data) < nfgenmsg {
		return nil, fmt.Errorf("message of %d bytes", len(m.Data))
	}
	return m.Data[nfgenmsg:], nil
}

// Generation returns the number of the last change of a table in this network namespace.
func (r *Reader) Generation(ctx context.Context) (gen uint32, err error) {
	msgs, err := r.execute(ctx, Any, unix.NFT_MSG_GETGEN, 0, nil)
	if err != nil {
		return 0, fmt.Errorf("ask for the generation: %w", err)
	}
	for _, m := range msgs {
		if gen, err = parseGeneration(m.Data); err != nil {
			return 0, fmt.Errorf("ask for the generation: %w", err)
		}
	}
	return gen, nil
}

// parseGeneration reads a message of the kind NEWGEN.
func parseGeneration(b []byte) (generation uint32, err error) {
	if len(b) < nfgenmsg {
		return 0, fmt.Errorf("message of %d bytes", len(b))
	}
	err = nested(b[nfgenmsg:], func(typ uint16, b []byte) error {
		if typ == unix.NFTA_GEN_ID && len(b) == 4 {
			generation = binary.BigEndian.Uint32(b)
		}
		return nil
	})
	return generation, err
}

// nftaTableHandle is NFTA_TABLE_HANDLE, which x/sys/unix lacks.
const nftaTableHandle = 4

// Table returns the handle of a table: another one if it was deleted and made again.
// There is false if there is no such table.
func (r *Reader) Table(ctx context.Context, f Family, name string) (handle uint64, there bool, err error) {
	msgs, err := r.execute(ctx, f, unix.NFT_MSG_GETTABLE, 0, textAttribute(unix.NFTA_TABLE_NAME, name))
	if errors.Is(err, unix.ENOENT) {
		return 0, false, nil
	}
	for i := 0; i < len(msgs) && err == nil; i++ {
		var b []byte
		if b, err = body(msgs[i]); err == nil {
			handle, err = parseTable(b)
		}
	}
	if err != nil {
		return 0, false, fmt.Errorf("look for table %v %s: %w [needs root and a kernel with nf_tables]", f, name, err)
	}
	return handle, true, nil
}

func parseTable(b []byte) (handle uint64, err error) {
	err = nested(b, func(typ uint16, b []byte) error {
		if typ == nftaTableHandle && len(b) == 8 {
			handle = binary.BigEndian.Uint64(b)
		}
		return nil
	})
	return handle, err
}

// Chains calls each for all chains of a table; for none if there is no such table. If
// table is empty, they are those of all tables of the family.
func (r *Reader) Chains(ctx context.Context, f Family, table string, each func(Chain) error) error {
	var attrs []byte
	if table != "" { // older kernels name the chains of all tables all the same
		attrs = textAttribute(unix.NFTA_CHAIN_TABLE, table)
	}
	msgs, err := r.dump(ctx, f, unix.NFT_MSG_GETCHAIN, attrs)
	for i := 0; i < len(msgs) && err == nil; i++ {
		var c Chain
		var in []byte
		if c, in, err = parseChain(msgs[i]); err != nil {
			break
		}
		if table == "" {
			c.Table = string(in)
		}
		if table == "" || string(in) == table {
			err = each(c)
		}
	}
	if err != nil {
		return fmt.Errorf("list chains of table %v %s: %w", f, table, err)
	}
	return nil
}

// Chain returns one chain. There is false if there is no such chain.
func (r *Reader) Chain(ctx context.Context, f Family, table, name string) (c Chain, there bool, err error) {
	attrs := append(textAttribute(unix.NFTA_CHAIN_TABLE, table), textAttribute(unix.NFTA_CHAIN_NAME, name)...)
	msgs, err := r.execute(ctx, f, unix.NFT_MSG_GETCHAIN, 0, attrs)
	if errors.Is(err, unix.ENOENT) {
		return c, false, nil
	}
	for i := 0; i < len(msgs) && err == nil; i++ {
		var b []byte
		if b, err = body(msgs[i]); err == nil {
			c, _, err = parseChain(b)
		}
	}
	if err != nil {
		return c, false, fmt.Errorf("look for chain %s of table %v %s: %w", name, f, table, err)
	}
	return c, true, nil
}

// parseChain reads a chain, and the name of its table.
func parseChain(b []byte) (c Chain, table []byte, err error) {
	err = nested(b, func(typ uint16, b []byte) error {
		switch {
		case typ == unix.NFTA_CHAIN_TABLE:
			table = trim(b)
		case typ == unix.NFTA_CHAIN_NAME:
			c.Name = text(b)
		case typ == unix.NFTA_CHAIN_HANDLE && len(b) == 8:
			c.Handle = binary.BigEndian.Uint64(b)
		case typ == unix.NFTA_CHAIN_USE && len(b) == 4:
			c.Use = binary.BigEndian.Uint32(b)
		case typ == unix.NFTA_CHAIN_POLICY && len(b) == 4:
			c.Drop = binary.BigEndian.Uint32(b) == nfDrop
		case typ == unix.NFTA_CHAIN_HOOK:
			c.Base = true
			return nested(b, func(typ uint16, b []byte) error {
				if typ == unix.NFTA_HOOK_HOOKNUM && len(b) == 4 {
					c.Hook = binary.BigEndian.Uint32(b)
				}
				return nil
			})
		}
		return nil
	})
	return c, table, err
}

// nfDrop is NF_DROP.
const nfDrop = 0

// Rules calls each for the rules of a chain, or of all chains of a table if chain is
// empty; for none if there is no such chain or table. All at once takes long where there
// are tens of thousands: to send the next piece the kernel walks them from the start.
func (r *Reader) Rules(ctx context.Context, f Family, table, chain string, each func(Rule) error) error {
	attrs := textAttribute(unix.NFTA_RULE_TABLE, table)
	if chain != "" {
		attrs = append(attrs, textAttribute(unix.NFTA_RULE_CHAIN, chain)...)
	}
	msgs, err := r.dump(ctx, f, unix.NFT_MSG_GETRULE, attrs)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	for i := 0; i < len(msgs) && err == nil; i++ {
		var rule Rule
		if rule, err = parseRule(msgs[i]); err == nil {
			err = each(rule)
		}
	}
	if err != nil {
		return fmt.Errorf("list rules of table %v %s: %w", f, table, err)
	}
	return nil
}

func parseRule(b []byte) (r Rule, err error) {
	var h maphash.Hash
	h.SetSeed(hashSeed)
	err = nested(b, func(typ uint16, b []byte) error {
		switch {
		case typ == unix.NFTA_RULE_CHAIN:
			r.Chain = text(b)
		case typ == unix.NFTA_RULE_HANDLE && len(b) == 8:
			r.Handle = binary.BigEndian.Uint64(b)
			_, _ = h.Write(b) // a hash takes everything
		case typ == unix.NFTA_RULE_EXPRESSIONS:
			r.expressions = b
			return hashExpressions(&h, b)
		case typ == unix.NFTA_RULE_USERDATA:
			r.Comment, _ = userdata.GetString(b, userdata.TypeComment)
		}
		return nil
	})
	r.Hash = h.Sum64()
	return r, err
}

// hashExpressions hashes a rule's expressions, but for counters.
func hashExpressions(h *maphash.Hash, exprs []byte) error {
	return nested(exprs, func(_ uint16, expr []byte) error {
		counter := false
		err := nested(expr, func(typ uint16, b []byte) error {
			counter = counter || typ == unix.NFTA_EXPR_NAME && string(trim(b)) == "counter"
			return nil
		})
		if err == nil && !counter {
			_, _ = h.Write(expr)
		}
		return err
	})
}

// Jump returns the chain that the rule jumps or goes to; empty if there is none.
func (r *Rule) Jump() (chain string) {
	path := [...]uint16{unix.NFTA_LIST_ELEM, unix.NFTA_EXPR_DATA, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CHAIN}
	var walk func(b []byte, depth int) error
	walk = func(b []byte, depth int) error {
		return nested(b, func(typ uint16, b []byte) error {
			switch {
			case typ != path[depth]:
			case depth == len(path)-1:
				chain = text(b)
			default:
				_ = walk(b, depth+1) // what has no such attributes is another expression
			}
			return nil
		})
	}
	_ = walk(r.expressions, 0)
	return chain
}

// textAttribute is one attribute with a text.
func textAttribute(typ uint16, text string) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(text)+1))
	b = append(binary.NativeEndian.AppendUint16(b, typ), text...)
	b = append(b, 0)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// attributeType leaves out the flags of an attribute's type.
const attributeType = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)

// nested calls f for each attribute in b. It copies nothing, unlike netlink's decoder,
// which takes twice the time for a dump of 50,000 Services.
func nested(b []byte, f func(typ uint16, b []byte) error) error {
	for len(b) > 0 {
		if len(b) < 4 {
			return fmt.Errorf("attribute of %d bytes", len(b))
		}
		size, typ := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if size < 4 || size > len(b) {
			return fmt.Errorf("attribute of %d bytes in %d", size, len(b))
		}
		if err := f(typ&attributeType, b[4:size:size]); err != nil {
			return err
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return nil
}

// text is a string attribute without its zero.
func text(b []byte) string { return string(trim(b)) }

func trim(b []byte) []byte {
	if len(b) > 0 && b[len(b)-1] == 0 {
		return b[:len(b)-1]
	}
	return b
}
