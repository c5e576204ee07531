package nftset

import (
	"github.com/google/nftables/expr"

	"github.com/fairway-net/fairway/internal/service/lb"
)

// Session affinity remembers the endpoint of a bucket of clients. The hash of a client's address selects one bucket of
// the list of endpoints. Each list has a number.
//
// The number of buckets limits the memory for clients. The map of a mode has room for 4,194,304 buckets: 64 Services
// with FullLists lists of manyBuckets fill it, however many clients they have.
const (
	// FullLists is how many lists of a Service and family have manyBuckets. Further lists have fewBuckets.
	FullLists = 4

	manyBuckets = 1 << 14
	fewBuckets  = 1 << 8
)

// BucketNumber is the number of a list of endpoints. Few reports whether the list has fewBuckets.
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

// HashToBucket reads an address of size bytes in register src, and writes its bucket to register dst.
func HashToBucket(src, dst, size uint32, few bool) *expr.Hash {
	return &expr.Hash{SourceRegister: src, DestRegister: dst, Length: size, Modulus: buckets(few), Seed: lb.HashSeed, Type: expr.HashTypeJenkins}
}
