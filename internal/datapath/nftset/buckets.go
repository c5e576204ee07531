package nftset

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/expr"

	"github.com/fairway-net/fairway/internal/service/lb"
)

// Clients with affinity are remembered by the hash of their address, which chooses a bucket of a number: that of a
// list of endpoints that share them. Each of the first FullLists lists of a Service and family has many buckets, the
// others, whose number has a bit for it, have few. So Services with up to FullLists lists, and an unlimited number
// of clients, need 64 of them to fill a mode's map of clients, whose size is 4,194,304.
const (
	FullLists = 4

	manyBuckets = 1 << 14
	fewBuckets  = 1 << 8
)

// BucketNumber is the number of a list of endpoints. Few says whether it has few buckets.
type BucketNumber interface {
	~uint32
	Few() bool
}

func buckets(few bool) uint32 {
	if few {
		return fewBuckets
	}
	return manyBuckets
}

// BucketKey returns the key of a client's bucket, list . bucket, given the client's key in releases in which each
// client had an element: list . address.
func BucketKey[N BucketNumber](client []byte) []byte {
	if len(client) < 4 {
		return client
	}
	addr, _ := netip.AddrFromSlice(client[4:])
	list := N(binary.NativeEndian.Uint32(client))
	return append(Number(uint32(list)), Number(uint32(lb.Pick(lb.Hash(addr), int(buckets(list.Few())))))...)
}

// HashToBucket writes the bucket of the address of size bytes in one register to another.
func HashToBucket(from, to, size uint32, few bool) *expr.Hash {
	return &expr.Hash{SourceRegister: from, DestRegister: to, Length: size, Modulus: buckets(few), Seed: lb.HashSeed, Type: expr.HashTypeJenkins}
}
