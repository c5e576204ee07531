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

// Session affinity. Each list of endpoints with affinity has a number and a limited number of buckets. The hash of a
// client's address chooses one of the buckets, and the bucket leads to an endpoint. So a client always finds its
// bucket, and clients of a bucket share an endpoint. Forged addresses can fill only the buckets of one Service.
// Reasons: docs/decisions/0013-affinity-is-bounded.md for mode nftables, and 0040 for this mode.

// fewBit is set in the number of a list with few buckets.
const fewBit = 1 << 30

// A listNumber is the number of a list.
type listNumber uint32

// Few implements nftset.BucketNumber.
func (n listNumber) Few() bool { return n&fewBit != 0 }

// numberOfList returns the number of a list of endpoints. list is its chain and family, owner its Service and family.
// There are more numbers than lists.
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
	p.recordFullList(owner, list)
	return id
}

// recordFullList records a list with many buckets.
func (p *renderer) recordFullList(owner, list string) {
	if p.fullLists[owner] == nil {
		p.fullLists[owner] = map[string]bool{}
	}
	p.fullLists[owner][list] = true
}

// adoptList records the number that the kernel holds for a list, unless its owner has too many lists with many buckets.
func (p *renderer) adoptList(owner, list string, id uint32) {
	switch {
	case id&fewBit != 0:
		p.fewLists.Adopt(list, id&^fewBit)
	case len(p.fullLists[owner]) < nftset.FullLists && p.lists.Adopt(list, id):
		p.recordFullList(owner, list)
	}
}

// retainLists releases the numbers of lists that are not in used, and reports whether there are any.
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

// affinityBuckets returns the name of a family's map of clients, from a list's number and a bucket to an endpoint's
// mark.
func affinityBuckets(is4 bool) string { return inFamily("affinity-buckets", is4) }

// The map affinityIDs leads from address, protocol and port to the number of a list, the map affinityIDsNodeports from
// protocol and port. The suffix external is for external clients that have another list. The map affinityLists leads
// from an endpoint's mark to the number of its list.
const (
	affinityIDs, affinityIDsNodeports = "affinity-ids", "affinity-ids-nodeports"
	external                          = "-external"
	affinityLists                     = "affinity-lists"
)

// affinityUpdates is the map from an endpoint's mark to the chain that records its client.
const affinityUpdates = "affinity-updates"

// The names of chains that record a client: one of the prefixes, fewInfix for a list with few buckets, and the seconds
// for which the client is recorded. A chain with updatePrefix records a new client, a chain with renewPrefix a known
// client.
const updatePrefix, renewPrefix, fewInfix = "affinity-update-", "affinity-renew-", "few-"

// updateChain returns the name of a chain that records the clients of a list.
func updateChain(prefix string, list uint32, seconds int64) string {
	if list&fewBit != 0 {
		prefix += fewInfix
	}
	return prefix + strconv.FormatInt(seconds, 10)
}

// dynsetDelete is NFT_DYNSET_OP_DELETE, which x/sys/unix lacks.
const dynsetDelete = 2

// A recording describes a chain that records clients.
type recording struct {
	seconds int
	few     uint32 // fewBit or 0
	renew   bool   // the client is known
}

// recordingOf parses the name of a chain that records clients.
func recordingOf(name string) (u recording, ok bool) {
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

// bucketOf returns the expressions that complete the key of affinityBuckets: behind the list's number in keyReg they
// put the hash of the client's address. few is fewBit or 0.
func bucketOf(few uint32, is4 bool) []expr.Any {
	const addr = keyReg + 2
	source := &expr.Payload{DestRegister: addr, Base: expr.PayloadBaseNetworkHeader, Offset: 8, Len: 16}
	if is4 {
		source.Offset, source.Len = 12, 4
	}
	return []expr.Any{source, nftset.HashToBucket(addr, keyReg+1, source.Len, few != 0)}
}

// kindsOfLists are the two kinds of lists: with many and with few buckets.
var kindsOfLists = [...]uint32{0, fewBit}

// writeLookup writes the rules that look a client up. The connection gets the mark of the client's bucket, or a mark of
// no endpoint if the client is not known. The connection's own mark is saved in the packet's priority.
func (h *helper) writeLookup(c *nftables.Conn, is4 bool) {
	chain := h.table.Chain(inFamily(affinityLookup, is4))
	const bit = keyReg + 6
	for _, few := range kindsOfLists {
		exprs := append([]expr.Any{
			readPriority(keyReg),
			&expr.Bitwise{SourceRegister: keyReg, DestRegister: bit, Len: 4, Mask: nftset.Number(fewBit), Xor: nftset.Number(0)},
			&expr.Cmp{Op: expr.CmpOpEq, Register: bit, Data: nftset.Number(few)},
		}, bucketOf(few, is4)...)
		h.rule(c, chain, append(exprs,
			&expr.Lookup{SourceRegister: keyReg, DestRegister: dataReg, IsDestRegSet: true, SetName: affinityBuckets(is4)},
			readMark(savedReg), setPriority(savedReg), setMark(dataReg), &expr.Verdict{Kind: expr.VerdictReturn})...)
	}
	h.rule(c, chain, readMark(savedReg), setPriority(savedReg), number(dataReg, markChosen), setMark(dataReg))
}

func (h *helper) rule(c *nftables.Conn, chain *nftables.Chain, exprs ...expr.Any) {
	c.AddRule(&nftables.Rule{Table: h.table.Ref(), Chain: chain, Exprs: exprs})
}

// writeUpdateChain writes a chain that records clients. A rule cannot change the value of an entry, so the chain for
// new clients deletes an entry first, which leads to another endpoint. The entry of a known client is only renewed,
// because it must not be missing for a moment.
func (h *helper) writeUpdateChain(c *nftables.Conn, name string) error {
	u, ok := recordingOf(name)
	if !ok {
		return fmt.Errorf("chain %s does not record clients", name)
	}
	chain := c.AddChain(h.table.Chain(name))
	c.FlushChain(chain)
	for _, is4 := range []bool{true, false} {
		exprs := append(endpointOf(is4, u.renew), bucketOf(u.few, is4)...)
		record := func(operation uint32) {
			exprs = append(exprs, &expr.Dynset{
				SrcRegKey: keyReg, SrcRegData: dataReg, SetName: affinityBuckets(is4),
				Operation: operation, Timeout: time.Duration(u.seconds) * time.Second,
			})
		}
		if !u.renew {
			record(dynsetDelete)
		}
		record(unix.NFT_DYNSET_OP_UPDATE)
		h.rule(c, chain, append(exprs, restoreMark)...)
	}
	h.rule(c, chain, restoreMark)
	return nil
}

// Chains with rules that nft cannot express: affinityLookup of each family, and the chain that restores the
// connection's own mark. The ruleset declares them, and a load does not touch their rules.
const affinityLookup, restoreMarkChain = "affinity-lookup", "affinity-restore-mark"

func constantChains() []string {
	return []string{inFamily(affinityLookup, true), inFamily(affinityLookup, false), restoreMarkChain}
}

// restoreMark ends a chain that records clients.
var restoreMark = &expr.Verdict{Kind: expr.VerdictGoto, Chain: restoreMarkChain}

// endpointOf returns the expressions that load the number of the endpoint's list into keyReg, and the endpoint's mark
// with markKnown into dataReg. known says that the connection's client was known. The number passes through the
// connection's mark, which restoreMark restores: nft 1.0.6 does not know the size of a looked-up value, and aborts if
// it lists a key with one.
func endpointOf(is4, known bool) []expr.Any {
	nfproto := byte(unix.NFPROTO_IPV6)
	if is4 {
		nfproto = unix.NFPROTO_IPV4
	}
	mark, other := uint32(savedReg), uint32(dataReg)
	if known {
		mark, other = dataReg, savedReg
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: keyReg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: keyReg, Data: []byte{nfproto}},
		readMark(mark),
		&expr.Bitwise{SourceRegister: mark, DestRegister: other, Len: 4, Mask: nftset.Number(0xffffffff), Xor: nftset.Number(markChosen ^ markKnown)},
		&expr.Lookup{SourceRegister: savedReg, DestRegister: keyReg, IsDestRegSet: true, SetName: affinityLists},
		setMark(keyReg),
		readMark(keyReg),
	}
}

// affinityKey returns the key address . protocol . port, each in a multiple of four bytes. NodePorts have no address.
func affinityKey(f *service.Frontend) []byte {
	var key []byte
	if !f.NodePort() {
		key = f.Addr.Addr().AsSlice()
	}
	key = append(key, byte(f.Proto), 0, 0, 0)
	return append(binary.BigEndian.AppendUint16(key, f.Addr.Port()), 0, 0)
}

// prune deletes the clients of lists that are not in used. It reads all clients.
func (h *helper) prune(ctx context.Context, used map[uint32]bool) error {
	return nftset.Prune(ctx, h.table, affinityBuckets, []listNumber(nil), func(ws []nft.Write) error { return h.table.Commit(ctx, nil, ws) }, func(e nft.Element, _ bool) (bool, error) {
		if len(e.Key) < 4 {
			return false, errors.New("affinity key is too short")
		}
		return !used[binary.NativeEndian.Uint32(e.Key)], nil
	})
}
