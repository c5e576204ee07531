package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"hash/maphash"
	"io"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/netlink"
)

// A Family is a family of nf_tables' tables.
type Family uint8

// The families of tables. Any asks for the tables of all families.
const (
	Any  Family = unix.NFPROTO_UNSPEC
	Inet Family = unix.NFPROTO_INET
	IPv4 Family = unix.NFPROTO_IPV4
	IPv6 Family = unix.NFPROTO_IPV6

	Netdev Family = unix.NFPROTO_NETDEV
)

// String returns nft's name of the family.
func (f Family) String() string {
	switch f {
	case Inet:
		return "inet"
	case IPv4:
		return "ip"
	case IPv6:
		return "ip6"
	case Netdev:
		return "netdev"
	}
	return fmt.Sprintf("family %d", uint8(f))
}

// maxDumps is how many times a dump is started. A dump that a change interrupts may be incomplete. The last dump is
// used as it is, because on some nodes another program writes all the time and interrupts every dump.
const maxDumps = 4

// A Reader reads tables of any family from the kernel, also those of other programs. Until Close it works in the
// network namespace of the thread that first used it. Only one goroutine may use it. The zero value is ready.
type Reader struct {
	conn *netlink.Conn // nil: not open
}

// A Chain is one chain of a table.
type Chain struct {
	Name   string
	Handle uint64
	Use    uint32 // the number of rules in it and of jumps to it
	Table  string // set only if the chains of all tables were requested
	// Base says that the chain is a base chain. Type, Hook and Priority are set only for base chains.
	Base     bool
	Type     string
	Hook     uint32
	Priority int32
	Drop     bool // the policy is drop
}

// A Rule is one rule of a chain.
type Rule struct {
	Chain   string
	Handle  uint64
	Comment string
	// Hash is a hash of the rule's expressions, except counters. It is the same in every process.
	Hash uint64
	Jump string // the chain that the rule jumps or goes to; "": none
}

// hashSeed is the seed of the hashes of elements' keys.
var hashSeed = maphash.MakeSeed()

// Close closes the socket. A closed Reader may be used again.
func (r *Reader) Close() {
	if r.conn != nil {
		_ = r.conn.Close() // nothing was written
		r.conn = nil
	}
}

// ask sends one request, and calls f with the attributes of each answer. The attributes are valid until f returns.
func (r *Reader) ask(ctx context.Context, family Family, kind, flags uint16, attrs []byte, f func(attrs []byte) error) (interrupted bool, err error) {
	if r.conn == nil {
		if r.conn, err = netlink.Dial(unix.NETLINK_NETFILTER); err != nil {
			return false, err
		}
	}
	body := append([]byte{byte(family), unix.NFNETLINK_V0, 0, 0}, attrs...)
	interrupted, err = r.conn.Ask(ctx, unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, body, func(b []byte) error {
		if len(b) < nfgenmsg {
			return fmt.Errorf("message of %d bytes", len(b))
		}
		return f(b[nfgenmsg:])
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		r.Close() // the socket may hold unread answers
	}
	return interrupted, err
}

const nfgenmsg = 4 // the size of struct nfgenmsg, the begin of all messages

// dump requests all objects of a kind. If a change interrupts the dump, it starts again. It calls start before each
// attempt.
func (r *Reader) dump(ctx context.Context, family Family, kind uint16, attrs []byte, start func(), f func(attrs []byte) error) error {
	for try := 1; ; try++ {
		start()
		interrupted, err := r.ask(ctx, family, kind, unix.NLM_F_DUMP, attrs, f)
		if err != nil || !interrupted || try == maxDumps {
			return err
		}
	}
}

// Supported reports whether the kernel has nf_tables. A kernel with iptables-legacy only does not.
func (r *Reader) Supported(ctx context.Context) (bool, error) {
	_, err := r.Generation(ctx)
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) { // no nfnetlink; no nf_tables in it
		return false, nil
	}
	return err == nil, err
}

// Generation returns the number of the last transaction that changed a table of this network namespace.
func (r *Reader) Generation(ctx context.Context) (gen uint32, err error) {
	_, err = r.ask(ctx, Any, unix.NFT_MSG_GETGEN, 0, nil, func(b []byte) (err error) {
		gen, err = parseGeneration(b)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("ask for the generation: %w", err)
	}
	return gen, nil
}

// parseGeneration reads the attributes of a message NEWGEN.
func parseGeneration(b []byte) (generation uint32, err error) {
	err = netlink.Attributes(b, func(typ uint16, b []byte) error {
		if typ == unix.NFTA_GEN_ID && len(b) == 4 {
			generation = binary.BigEndian.Uint32(b)
		}
		return nil
	})
	return generation, err
}

// nftaTableHandle is NFTA_TABLE_HANDLE, which x/sys/unix lacks.
const nftaTableHandle = 4

// Table returns the handle of a table. A table that was deleted and added again has another handle. there is false if
// there is no such table.
func (r *Reader) Table(ctx context.Context, f Family, name string) (handle uint64, there bool, err error) {
	_, err = r.ask(ctx, f, unix.NFT_MSG_GETTABLE, 0, netlink.AppendText(nil, unix.NFTA_TABLE_NAME, name), func(b []byte) (err error) {
		handle, err = parseTable(b)
		return err
	})
	if errors.Is(err, unix.ENOENT) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("look for table %v %s: %w [needs root and a kernel with nf_tables]", f, name, err)
	}
	return handle, true, nil
}

func parseTable(b []byte) (handle uint64, err error) {
	err = netlink.Attributes(b, func(typ uint16, b []byte) error {
		if typ == nftaTableHandle && len(b) == 8 {
			handle = binary.BigEndian.Uint64(b)
		}
		return nil
	})
	return handle, err
}

// Chains calls each for all chains of a table, or of all tables of the family if table is empty. A missing table is not
// an error.
func (r *Reader) Chains(ctx context.Context, f Family, table string, each func(Chain) error) error {
	var attrs []byte
	if table != "" { // older kernels ignore the attribute and list the chains of all tables
		attrs = netlink.AppendText(nil, unix.NFTA_CHAIN_TABLE, table)
	}
	var all []Chain
	err := r.dump(ctx, f, unix.NFT_MSG_GETCHAIN, attrs, func() { all = all[:0] }, func(b []byte) error {
		c, in, err := parseChain(b)
		if table == "" {
			c.Table = string(in)
		}
		if err == nil && (table == "" || string(in) == table) {
			all = append(all, c)
		}
		return err
	})
	for i := 0; i < len(all) && err == nil; i++ {
		err = each(all[i])
	}
	if err != nil {
		return fmt.Errorf("list chains of table %v %s: %w", f, table, err)
	}
	return nil
}

// Chain returns one chain. there is false if there is no such chain.
func (r *Reader) Chain(ctx context.Context, f Family, table, name string) (c Chain, there bool, err error) {
	attrs := netlink.AppendText(netlink.AppendText(nil, unix.NFTA_CHAIN_TABLE, table), unix.NFTA_CHAIN_NAME, name)
	_, err = r.ask(ctx, f, unix.NFT_MSG_GETCHAIN, 0, attrs, func(b []byte) (err error) {
		c, _, err = parseChain(b)
		return err
	})
	if errors.Is(err, unix.ENOENT) {
		return c, false, nil
	}
	if err != nil {
		return c, false, fmt.Errorf("look for chain %s of table %v %s: %w", name, f, table, err)
	}
	return c, true, nil
}

// parseChain reads a chain, and the name of its table.
func parseChain(b []byte) (c Chain, table []byte, err error) {
	err = netlink.Attributes(b, func(typ uint16, b []byte) error {
		switch {
		case typ == unix.NFTA_CHAIN_TABLE:
			table = netlink.Text(b)
		case typ == unix.NFTA_CHAIN_NAME:
			c.Name = text(b)
		case typ == unix.NFTA_CHAIN_HANDLE && len(b) == 8:
			c.Handle = binary.BigEndian.Uint64(b)
		case typ == unix.NFTA_CHAIN_USE && len(b) == 4:
			c.Use = binary.BigEndian.Uint32(b)
		case typ == unix.NFTA_CHAIN_POLICY && len(b) == 4:
			c.Drop = binary.BigEndian.Uint32(b) == nfDrop
		case typ == unix.NFTA_CHAIN_TYPE:
			c.Type = text(b)
		case typ == unix.NFTA_CHAIN_HOOK:
			c.Base = true
			return netlink.Attributes(b, func(typ uint16, b []byte) error {
				switch {
				case typ == unix.NFTA_HOOK_HOOKNUM && len(b) == 4:
					c.Hook = binary.BigEndian.Uint32(b)
				case typ == unix.NFTA_HOOK_PRIORITY && len(b) == 4:
					c.Priority = int32(binary.BigEndian.Uint32(b))
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

// Rules calls each for the rules of a chain, or of all chains of a table if chain is empty. A missing chain or table is
// not an error. To read tens of thousands of rules at once takes long: for each page of the list the kernel walks the
// rules from the start.
func (r *Reader) Rules(ctx context.Context, f Family, table, chain string, each func(Rule) error) error {
	return r.rules(ctx, f, table, chain, false, func(rule Rule, _ []byte) error { return each(rule) })
}

// Expressions is Rules with the attributes of each rule's expressions.
func (r *Reader) Expressions(ctx context.Context, f Family, table, chain string, each func(rule Rule, exprs []byte) error) error {
	return r.rules(ctx, f, table, chain, true, each)
}

func (r *Reader) rules(ctx context.Context, f Family, table, chain string, keep bool, each func(rule Rule, exprs []byte) error) error {
	attrs := netlink.AppendText(nil, unix.NFTA_RULE_TABLE, table)
	if chain != "" {
		attrs = netlink.AppendText(attrs, unix.NFTA_RULE_CHAIN, chain)
	}
	var all []Rule
	var ends []int
	var exprs []byte // the expressions of all rules
	start := func() { all, ends, exprs = all[:0], ends[:0], exprs[:0] }
	err := r.dump(ctx, f, unix.NFT_MSG_GETRULE, attrs, start, func(b []byte) error {
		rule, its, err := parseRule(b)
		if keep {
			exprs = append(exprs, its...)
		}
		all, ends = append(all, rule), append(ends, len(exprs))
		return err
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	for i, begin := 0, 0; i < len(all) && err == nil; i++ {
		err = each(all[i], exprs[begin:ends[i]:ends[i]])
		begin = ends[i]
	}
	if err != nil {
		return fmt.Errorf("list rules of table %v %s: %w", f, table, err)
	}
	return nil
}

// parseRule reads a rule and its expressions.
func parseRule(b []byte) (r Rule, exprs []byte, err error) {
	h := fnv.New64a()
	err = netlink.Attributes(b, func(typ uint16, b []byte) error {
		switch {
		case typ == unix.NFTA_RULE_CHAIN:
			r.Chain = text(b)
		case typ == unix.NFTA_RULE_HANDLE && len(b) == 8:
			r.Handle = binary.BigEndian.Uint64(b)
		case typ == unix.NFTA_RULE_EXPRESSIONS:
			r.Jump, exprs = jump(b), b
			return hashExpressions(h, b)
		case typ == unix.NFTA_RULE_USERDATA:
			r.Comment = comment(b, userdata.TypeComment)
		}
		return nil
	})
	r.Hash = h.Sum64()
	return r, exprs, err
}

// hashExpressions hashes a rule's expressions, except counters.
func hashExpressions(h io.Writer, exprs []byte) error {
	return netlink.Attributes(exprs, func(_ uint16, expr []byte) error {
		counter := false
		err := netlink.Attributes(expr, func(typ uint16, b []byte) error {
			counter = counter || typ == unix.NFTA_EXPR_NAME && string(netlink.Text(b)) == "counter"
			return nil
		})
		if err == nil && !counter {
			_, _ = h.Write(expr)
		}
		return err
	})
}

// jump returns the chain that a rule's expressions jump or go to, or "" if there is none.
func jump(exprs []byte) (chain string) {
	path := [...]uint16{unix.NFTA_LIST_ELEM, unix.NFTA_EXPR_DATA, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CHAIN}
	var walk func(b []byte, depth int)
	walk = func(b []byte, depth int) {
		// An error only means that the expression is of another kind.
		_ = netlink.Attributes(b, func(typ uint16, b []byte) error {
			switch {
			case typ != path[depth]:
			case depth == len(path)-1:
				chain = text(b)
			default:
				walk(b, depth+1)
			}
			return nil
		})
	}
	walk(exprs, 0)
	return chain
}

// comment returns the comment in nft's user data. User data is a list of type (one byte), size (one byte) and value.
// google/nftables cannot be used here, because it panics if a value is cut off.
func comment(b []byte, typ userdata.Type) string {
	for len(b) >= 2 && len(b) >= 2+int(b[1]) {
		value := b[2 : 2+int(b[1])]
		if userdata.Type(b[0]) == typ {
			return text(value)
		}
		b = b[2+len(value):]
	}
	return ""
}

// text copies a text attribute to a string.
func text(b []byte) string { return string(netlink.Text(b)) }
