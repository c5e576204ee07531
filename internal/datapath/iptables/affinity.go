package iptables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// Session affinity. A list of endpoints with affinity has a number. Clients of the list are
// known by the hash of their address, which chooses one of a limited number of buckets
// of the number: a client always finds its bucket, those that share one share an endpoint,
// and a Service has no more entries than its share of the map, whoever forges addresses.
// docs/decisions/0013-affinity-is-bounded.md says why, for mode nftables, and 0040 for this.

// fewBit is the bit of the numbers of lists with few buckets.
const fewBit = 1 << 30

// A listNumber is the number of a list.
type listNumber uint32

// Few implements nftset.BucketNumber.
func (n listNumber) Few() bool { return n&fewBit != 0 }

// numberOfList is the number of a list of endpoints, by its chain and family. owner is the
// Service and family that it counts for. There are more numbers than lists.
func (p *renderer) numberOfList(owner, list string) uint32 {
	if id, ok := p.lists.Lookup(list); ok {
		return id
	}
	if id, ok := p.fewLists.Lookup(list); ok {
		return id | fewBit
	}
	if len(p.fullLists[owner]) >= nftset.FullLists {
		id, _ := p.fewLists.Get(list)
		return id | fewBit
	}
	id, _ := p.lists.Get(list)
	p.noteFullList(owner, list)
	return id
}

// noteFullList notes a list with many buckets.
func (p *renderer) noteFullList(owner, list string) {
	if p.fullLists[owner] == nil {
		p.fullLists[owner] = map[string]bool{}
	}
	p.fullLists[owner][list] = true
}

// adoptList notes the number that the kernel holds for a list, if its owner may have it.
func (p *renderer) adoptList(owner, list string, id uint32) {
	switch {
	case id&fewBit != 0:
		p.fewLists.Adopt(list, id&^fewBit)
	case len(p.fullLists[owner]) < nftset.FullLists && p.lists.Adopt(list, id):
		p.noteFullList(owner, list)
	}
}

// retainLists releases the numbers of lists that are not used, and reports whether there are any.
func (p *renderer) retainLists(used map[uint32]bool) (released bool) {
	before := p.lists.Len() + p.fewLists.Len()
	p.lists.Retain(func(id uint32) bool { return used[id] })
	p.fewLists.Retain(func(id uint32) bool { return used[id|fewBit] })
	for owner, lists := range p.fullLists {
		for list := range lists {
			if _, ok := p.lists.Lookup(list); !ok {
				delete(lists, list)
			}
		}
		if len(lists) == 0 {
			delete(p.fullLists, owner)
		}
	}
	return p.lists.Len()+p.fewLists.Len() < before
}

// affinityBuckets is the map of clients of a family: the number of a list and a bucket of it
// lead to the mark of an endpoint.
func affinityBuckets(is4 bool) string { return inFamily("affinity-buckets", is4) }

// affinityIDs and affinityIDsNodeports lead from what clients use to the number of the list; with external,
// for clients that are no pods, where they have another. affinityLists leads from the mark of an endpoint to
// the list that it was chosen from.
const (
	affinityIDs, affinityIDsNodeports = "affinity-ids", "affinity-ids-nodeports"
	external                          = "-external"
	affinityLists                     = "affinity-lists"
)

// affinityUpdates leads from the mark of an endpoint to the chain that notes its client.
const affinityUpdates = "affinity-updates"

// Chains that note a client for so many seconds: one where it is new, another where
// it was before. Those of lists with few buckets have fewInfix too. Releases up to 77b8eb1
// called them learn- and keep-.
const updatePrefix, renewPrefix, fewInfix = "affinity-update-", "affinity-renew-", "few-"

// updater is the name of such a chain for a list.
func updater(prefix string, list uint32, seconds int64) string {
	if list&fewBit != 0 {
		prefix += fewInfix
	}
	return prefix + strconv.FormatInt(seconds, 10)
}

// dynsetDelete is NFT_DYNSET_OP_DELETE, which x/sys/unix lacks.
const dynsetDelete = 2

// An updating is what a chain that notes clients does.
type updating struct {
	seconds int
	few     uint32 // fewBit or 0
	renew   bool
}

// updateOf reads the name of such a chain.
func updateOf(name string) (u updating, ok bool) {
	text, renew := strings.CutPrefix(name, renewPrefix)
	if u.renew = renew; !renew {
		if text, ok = strings.CutPrefix(name, updatePrefix); !ok {
			return u, false
		}
	}
	text, few := strings.CutPrefix(text, fewInfix)
	if few {
		u.few = fewBit
	}
	seconds, err := strconv.Atoi(text)
	u.seconds = seconds
	return u, err == nil
}

// bucketOf are the expressions that complete a key in keyReg, for lists with or without
// fewBit: behind the list's number comes the hash of the client's address.
func bucketOf(few uint32, is4 bool) []expr.Any {
	const addr = keyReg + 2
	from := &expr.Payload{DestRegister: addr, Base: expr.PayloadBaseNetworkHeader, Offset: 8, Len: 16}
	if is4 {
		from.Offset, from.Len = 12, 4
	}
	return []expr.Any{from, nftset.HashToBucket(addr, keyReg+1, from.Len, few != 0)}
}

// sizes are the two kinds of lists.
var sizes = [...]uint32{0, fewBit}

// lookup writes the rules that look a client up: the mark of its bucket, if that is known,
// else one of no endpoint, becomes the connection's, whose own goes into the priority.
func (h *helper) lookup(c *nftables.Conn, is4 bool) {
	chain := h.table.Chain(inFamily(affinityLookup, is4))
	const bit = keyReg + 6
	for _, few := range sizes {
		exprs := append([]expr.Any{
			readPriority(keyReg),
			&expr.Bitwise{SourceRegister: keyReg, DestRegister: bit, Len: 4, Mask: nftset.Number(fewBit), Xor: nftset.Number(0)},
			&expr.Cmp{Op: expr.CmpOpEq, Register: bit, Data: nftset.Number(few)},
		}, bucketOf(few, is4)...)
		h.rule(c, chain, append(exprs,
			&expr.Lookup{SourceRegister: keyReg, DestRegister: dataReg, IsDestRegSet: true, SetName: affinityBuckets(is4)},
			readMark(keepReg), setPriority(keepReg), setMark(dataReg), &expr.Verdict{Kind: expr.VerdictReturn})...)
	}
	h.rule(c, chain, readMark(keepReg), setPriority(keepReg), number(dataReg, markChosen), setMark(dataReg))
}

func (h *helper) rule(c *nftables.Conn, chain *nftables.Chain, exprs ...expr.Any) {
	c.AddRule(&nftables.Rule{Table: h.table.Ref(), Chain: chain, Exprs: exprs})
}

// writeUpdateChain writes one of the chains that note clients. A rule cannot change an entry's value, so
// an entry that leads to another endpoint is deleted first. An entry that is right is only
// renewed: it must not be missing for a moment.
func (h *helper) writeUpdateChain(c *nftables.Conn, name string) error {
	u, ok := updateOf(name)
	if !ok {
		return fmt.Errorf("chain %s does not note clients", name)
	}
	chain := c.AddChain(h.table.Chain(name))
	c.FlushChain(chain)
	for _, is4 := range []bool{true, false} {
		exprs := append(endpointOf(is4, u.renew), bucketOf(u.few, is4)...)
		note := func(operation uint32) {
			exprs = append(exprs, &expr.Dynset{
				SrcRegKey: keyReg, SrcRegData: dataReg, SetName: affinityBuckets(is4),
				Operation: operation, Timeout: time.Duration(u.seconds) * time.Second,
			})
		}
		if !u.renew {
			note(dynsetDelete)
		}
		note(unix.NFT_DYNSET_OP_UPDATE)
		h.rule(c, chain, append(exprs, restoreMark)...)
	}
	h.rule(c, chain, restoreMark)
	return nil
}

// Chains whose rules nft cannot express: affinityLookup, one for each family, and the one that restores the
// connection's own mark. The program declares them, and a load leaves their rules alone.
const affinityLookup, restoreMarkChain = "affinity-lookup", "affinity-restore-mark"

func constantChains() []string {
	return []string{inFamily(affinityLookup, true), inFamily(affinityLookup, false), restoreMarkChain}
}

// restoreMark ends a chain that notes clients.
var restoreMark = &expr.Verdict{Kind: expr.VerdictGoto, Chain: restoreMarkChain}

// endpointOf are the expressions that load an endpoint's list, as a key, and the mark by
// which its client is known: of a connection whose client was known, or of a new one. The
// list goes through the connection's mark, which is given back at the end: nft (1.0.6) does
// not know the size of a value that was looked up, and aborts when it lists a key of one.
func endpointOf(is4, wasKnown bool) []expr.Any {
	nfproto := byte(unix.NFPROTO_IPV6)
	if is4 {
		nfproto = unix.NFPROTO_IPV4
	}
	mark, other := uint32(keepReg), uint32(dataReg)
	if wasKnown {
		mark, other = dataReg, keepReg
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: keyReg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: keyReg, Data: []byte{nfproto}},
		readMark(mark),
		&expr.Bitwise{SourceRegister: mark, DestRegister: other, Len: 4, Mask: nftset.Number(0xffffffff), Xor: nftset.Number(markChosen ^ markKnown)},
		&expr.Lookup{SourceRegister: keepReg, DestRegister: keyReg, IsDestRegSet: true, SetName: affinityLists},
		setMark(keyReg),
		readMark(keyReg),
	}
}

// affinityKey is address . protocol . port, each in four bytes or a multiple of them.
func affinityKey(f *service.Frontend) []byte {
	var key []byte
	if !f.NodePort() {
		key = f.Addr.Addr().AsSlice()
	}
	key = append(key, byte(f.Proto), 0, 0, 0)
	return append(binary.BigEndian.AppendUint16(key, f.Addr.Port()), 0, 0)
}

// prune deletes the clients of lists that are not used any more. It reads all clients.
func (h *helper) prune(ctx context.Context, used map[uint32]bool) error {
	return nftset.Prune(ctx, h.table, affinityBuckets, []listNumber(nil), func(ws []nft.Write) error { return h.table.Commit(ctx, nil, ws) }, func(e nft.Element, _ bool) (bool, error) {
		if len(e.Key) < 4 {
			return false, errors.New("affinity key is too short")
		}
		return !used[binary.NativeEndian.Uint32(e.Key)], nil
	})
}
