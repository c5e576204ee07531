package nftables

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
)

// Names of the chains that record the endpoints of clients.
const (
	affinityChainPrefix = "affinity-update-"
	affinityPrerouting  = affinityChainPrefix + "prerouting"
	affinityOutput      = affinityChainPrefix + "output"
	confirmedSuffix     = "-confirmed"
)

func affinityUpdateChain(seconds uint32, confirmed bool) string {
	name := fmt.Sprintf("%s%d", affinityChainPrefix, seconds)
	if confirmed {
		name += confirmedSuffix
	}
	return name
}

// affinityHook returns the rules of a hook. The first finds new connections, to record their endpoints. The second
// finds the answers that confirm an endpoint: the SYN ACK of TCP, or the first packets of other protocols. After more
// packets conntrack calls the connection assured.
//
//	ct state new ct status dnat meta priority & 0xfff00000 vmap @affinity-updates
//	ct direction reply ct state established ct status & (dnat | assured) == dnat \
//	    meta priority set ct id map @affinity-pending meta priority & 0xfff00000 vmap @affinity-confirms
func affinityHook() [][]expr.Any {
	const directionReply, assured = 1, 1 << 2
	dispatch := func(to string) []expr.Any {
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg1},
			masked(uint32(durationMask), 0),
			&expr.Lookup{SourceRegister: reg1, SetName: to, IsDestRegSet: true, DestRegister: unix.NFT_REG_VERDICT},
		}
	}
	first := []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg1},
		masked(expr.CtStateBitNEW, 0),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: []byte{0, 0, 0, 0}},
	}
	first = append(append(first, translated()...), dispatch(affinityUpdates)...)
	answer := []expr.Any{
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{directionReply}},
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg1}, // leaves out ICMP errors, which are "related"
		masked(expr.CtStateBitESTABLISHED, 0),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: []byte{0, 0, 0, 0}},
		&expr.Ct{Key: expr.CtKeySTATUS, Register: reg1},
		masked(ipsDstNAT|assured, 0),
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: nftset.Number(ipsDstNAT)},
		&expr.Ct{Key: ctID, Register: reg1},
		&expr.Lookup{SourceRegister: reg1, DestRegister: reg1, IsDestRegSet: true, SetName: affinityPending},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg1, SourceRegister: true},
	}
	return [][]expr.Any{first, append(answer, dispatch(affinityConfirms)...)}
}

// ipsDstNAT is a bit of "ct status". ctID is the key of "ct id" (NFT_CT_ID).
const (
	ipsDstNAT = 1 << 5
	ctID      = 23
)

// addAffinityHooks queues the hooks that record endpoints.
func addAffinityHooks(t *nft.Table, c *nftables.Conn) {
	for name, hook := range map[string]*nftables.ChainHook{affinityPrerouting: nftables.ChainHookPrerouting, affinityOutput: nftables.ChainHookOutput} {
		chain := addHook(t, c, name, hook, numbers.HookAffinity)
		for _, rule := range affinityHook() {
			c.AddRule(&nftables.Rule{Table: t.Ref(), Chain: chain, Exprs: rule})
		}
	}
}

// addHook queues a base chain without rules.
func addHook(t *nft.Table, c *nftables.Conn, name string, hook *nftables.ChainHook, priority nftables.ChainPriority) *nftables.Chain {
	chain := t.Chain(name)
	chain.Type, chain.Hooknum, chain.Priority = nftables.ChainTypeFilter, hook, &priority
	c.AddChain(chain)
	c.FlushChain(chain)
	return chain
}

// translated returns "ct status dnat".
func translated() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: reg1},
		masked(ipsDstNAT, 0),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: []byte{0, 0, 0, 0}},
	}
}

// delAffinityHooks queues the inverse of addAffinityHooks.
func delAffinityHooks(t *nft.Table, c *nftables.Conn) {
	for _, name := range []string{affinityPrerouting, affinityOutput} {
		c.FlushChain(t.Chain(name))
		c.DelChain(t.Chain(name))
	}
}

// affinityUpdate returns the rules of a chain that records a client's endpoint: for the first packet of a connection,
// or for the first answer if confirmed is set.
//
//	meta priority & 0x80000 == 0 add @affinity-buckets4 { (meta priority & 0xf00fffff) . jhash ip saddr mod 16384 seed 1 timeout 1m : ip daddr . th dport }
//	(the same for IDs with few buckets, and for ip6)
//	update @affinity-pending { ct id timeout 1m : meta priority }
//
// The client is the destination of an answer. An answer renews the entry, and ends the entry in affinity-pending. A
// first packet only adds an entry, because it must not shorten the life of a confirmed one.
func affinityUpdate(seconds uint32, confirmed bool) (rules [][]expr.Any) {
	const data = firstReg + 8
	lifetime, operation, pending := min(unanswered, time.Duration(seconds)*time.Second), uint32(unix.NFT_DYNSET_OP_ADD), unanswered
	if confirmed {
		lifetime, operation, pending = time.Duration(seconds)*time.Second, unix.NFT_DYNSET_OP_UPDATE, time.Second
	}
	for _, f := range families {
		client, endpoint, port := f.saddr, f.daddr, uint32(2)
		if confirmed {
			client, endpoint, port = f.daddr, f.saddr, 0
		}
		for _, few := range []affinityID{0, affinityFew} {
			rules = append(rules, append(f.bucket(few, client),
				&expr.Payload{DestRegister: data, Base: expr.PayloadBaseNetworkHeader, Offset: endpoint, Len: f.size},
				&expr.Payload{DestRegister: data + f.size/4, Base: expr.PayloadBaseTransportHeader, Offset: port, Len: 2},
				&expr.Dynset{SrcRegKey: firstReg, SrcRegData: data, SetName: affinityBuckets.Name(f.is4), Operation: operation, Timeout: lifetime},
			))
		}
	}
	return append(rules, []expr.Any{
		&expr.Ct{Key: ctID, Register: firstReg},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: data},
		&expr.Dynset{SrcRegKey: firstReg, SrcRegData: data, SetName: affinityPending, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: pending},
	}, clearPriority())
}

// bucket returns the expressions that load the key of a client's bucket: the ID, and the hash of the client's address.
// They match only IDs with bit affinityFew equal to few. client is the offset of the address in the network header.
func (f family) bucket(few affinityID, client uint32) []expr.Any {
	match := append(f.family(),
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg1},
		masked(uint32(affinityFew), 0),
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: affinityData(few)},
	)
	return append(append(match, loadAffinityID()...),
		&expr.Payload{DestRegister: hashReg, Base: expr.PayloadBaseNetworkHeader, Offset: client, Len: f.size},
		nftset.HashToBucket(hashReg, firstReg+1, f.size, few.Few()),
	)
}

// addUpdateChain queues the two chains of a duration, and the elements that lead to them. The chains also clear the
// packet's priority.
func addUpdateChain(t *nft.Table, c *nftables.Conn, d durationIndex, seconds uint32) error {
	for set, confirmed := range affinityMaps {
		name := affinityUpdateChain(seconds, confirmed)
		chain := c.AddChain(t.Chain(name))
		c.FlushChain(chain)
		for _, rule := range affinityUpdate(seconds, confirmed) {
			c.AddRule(&nftables.Rule{Table: t.Ref(), Chain: chain, Exprs: rule})
		}
		if err := c.SetAddElements(t.Set(set), []nftables.SetElement{{
			Key: affinityData(d.priority(affinityRange)), Comment: fmt.Sprintf("%ds", seconds),
			VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: name},
		}}); err != nil {
			return err
		}
	}
	return nil
}

// affinityMaps has the maps that lead to update chains. The value says whether those are for answers.
var affinityMaps = map[string]bool{affinityUpdates: false, affinityConfirms: true}

// delUpdateChain queues the inverse of addUpdateChain.
func delUpdateChain(t *nft.Table, c *nftables.Conn, d durationIndex, seconds uint32) error {
	for set, confirmed := range affinityMaps {
		if err := c.SetDeleteElements(t.Set(set), []nftables.SetElement{{Key: affinityData(d.priority(affinityRange))}}); err != nil {
			return err
		}
		chain := t.Chain(affinityUpdateChain(seconds, confirmed))
		c.FlushChain(chain)
		c.DelChain(chain)
	}
	return nil
}

// loadAffinityID returns the expressions that load the affinity ID from the packet's priority to the first register.
func loadAffinityID() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg1}, masked(uint32(affinityMask), 0)}
}

func affinityData(i affinityID) []byte { return nftset.Number(uint32(i)) }

// affinityID returns the expressions that set the packet's priority to the affinity ID of a frontend. The frontend's
// key is loaded before. They use register reg.
func (f family) affinityID(v verdictID, reg uint32) []expr.Any {
	from := affinityIDSet(v&verdictNodePort != 0, v&verdictExternal != 0)
	return []expr.Any{
		&expr.Lookup{SourceRegister: firstReg, DestRegister: reg, IsDestRegSet: true, SetName: from.Name(f.is4)},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg, SourceRegister: true},
	}
}

// affinityLookup returns the rules that look up a client's endpoint. For each family one rule sets the ID. Then there
// is one rule for each protocol, and for IDs with many and with few buckets. Each rule names its protocol: otherwise
// nft cannot load its own listing of a translated port, which nft.Table.Declare needs.
//
//	meta priority set ip daddr . meta l4proto . th dport map @affinity-ids4
//	meta l4proto tcp meta priority & 0x80000 == 0 dnat ip to (meta priority & 0xf00fffff) . jhash ip saddr mod 16384 seed 1 map @affinity-buckets4
func affinityLookup(v verdictID) (rules [][]expr.Any) {
	for _, f := range families {
		rules = append(rules, f.affinityLookup(v)...)
	}
	return rules
}

func (f family) affinityLookup(v verdictID) [][]expr.Any {
	front, _ := f.loadFrontend(v&verdictNodePort != 0)
	rules := [][]expr.Any{slices.Concat(f.family(), front, f.affinityID(v, firstReg))}
	for _, few := range []affinityID{0, affinityFew} {
		for _, proto := range []api.Proto{api.TCP, api.UDP, api.SCTP} {
			rule := append([]expr.Any{
				&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{byte(proto)}},
			}, f.bucket(few, f.saddr)...)
			rules = append(rules, append(rule,
				&expr.Lookup{SourceRegister: firstReg, DestRegister: firstReg, IsDestRegSet: true, SetName: affinityBuckets.Name(f.is4)},
				&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.nfproto), RegAddrMin: firstReg, RegProtoMin: f.protoInNAT},
			))
		}
	}
	return rules
}
