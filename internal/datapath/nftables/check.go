package nftables

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// verifyShare bounds the time that Check spends reading: a node where somebody else
// changes nf_tables all the time must not spend more than a twentieth on it.
const verifyShare = 20

// Check implements datapath.Datapath.
//
// The kernel counts the changes of all tables (the generation). As long as that is the
// number after our last commit, nobody has changed anything, which costs one message
// to find out. Else our chains and rules are compared by their handles, and our
// elements one by one.
func (d *Datapath) Check(context.Context) (intact bool, err error) {
	if d.table == nil {
		return true, nil // the next Sync compares anyway
	}
	if len(d.swept) > 0 {
		d.kernel.commits = 0
		if err := d.sweep(d.swept); err != nil {
			return true, err
		}
		d.swept = nil
		d.generation += d.kernel.commits
	}
	gen, err := d.kernel.generation()
	if err != nil || gen == d.generation {
		return true, err
	}
	rules, err := d.kernel.rules()
	if err != nil {
		return true, err
	}
	if !slices.Equal(rules, d.rules) {
		d.reload = true
		d.Close()
		return false, nil
	}
	if time.Now().Before(d.verify) {
		return true, nil
	}
	start := time.Now()
	now, err := d.kernel.read()
	if err != nil {
		return true, err
	}
	d.verify = time.Now().Add(verifyShare * time.Since(start))
	if !d.state.same(now) {
		d.Close()
		return false, nil
	}
	d.generation = gen
	return true, nil
}

// remember notes what the kernel holds after our own commits. The generation must have
// grown by their number from before; if it grew by more, somebody else changed
// something meanwhile, and Check will look.
func (d *Datapath) remember(before uint32, rulesChanged bool) (err error) {
	d.generation = before + d.kernel.commits
	if rulesChanged {
		d.rules, err = d.kernel.rules()
	}
	return err
}

// same reports whether the kernel holds the same in s and o. Counts of uses are ours.
func (s *state) same(o *state) bool {
	members := func(a, b map[netip.Addr]int) bool {
		return maps.EqualFunc(a, b, func(int, int) bool { return true })
	}
	return maps.EqualFunc(s.frontends, o.frontends, func(a, b *held) bool { return a.equal(b) }) &&
		maps.Equal(s.chains, o.chains) && maps.Equal(s.learned, o.learned) && s.settings.Equal(o.settings) &&
		members(s.hairpins, o.hairpins) && members(s.reserved, o.reserved)
}

// generation returns how often the tables of this network namespace were changed.
func (k *kernel) generation() (uint32, error) {
	if k.ask == nil {
		c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
		if err != nil {
			return 0, fmt.Errorf("open netlink socket: %w", err)
		}
		k.ask = c
	}
	msgs, err := k.ask.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN),
			Flags: netlink.Request,
		},
		Data: []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}, // struct nfgenmsg
	})
	if err != nil {
		return 0, fmt.Errorf("ask for the generation: %w", err)
	}
	var gen uint32
	for _, m := range msgs {
		if len(m.Data) < 4 {
			continue
		}
		err = nested(m.Data[4:], func(typ uint16, b []byte) error {
			if typ == unix.NFTA_GEN_ID && len(b) == 4 {
				gen = binary.BigEndian.Uint32(b)
			}
			return nil
		})
	}
	return gen, err
}

// rules returns the chains of our table and the handles of their rules. The kernel never
// uses a handle again, so that a change of a rule is a change of this list.
func (k *kernel) rules() ([]string, error) {
	c, err := k.conn()
	if err != nil {
		return nil, err
	}
	var list []string
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		k.close() // answers may be left unread
		return nil, fmt.Errorf("list chains: %w", err)
	}
	for _, chain := range chains {
		if chain.Table.Name != tableName {
			continue
		}
		list = append(list, chain.Name)
		rules, err := c.GetRules(k.table, chain)
		if err != nil {
			k.close()
			return nil, fmt.Errorf("list rules of %s: %w", chain.Name, err)
		}
		for _, r := range rules {
			list = append(list, fmt.Sprintf("%s %d", chain.Name, r.Handle))
		}
	}
	slices.Sort(list)
	return list, nil
}
