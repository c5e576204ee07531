package lb

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// HashSeed is the seed of the hash. The rules of nft must name it, because the kernel otherwise takes a random seed.
const HashSeed = 1

// Hash returns the hash of an address as the kernel computes it for nft's "jhash ip saddr seed 1" and "jhash ip6 saddr
// seed 1". An IPv4 address in IPv6 counts as IPv4.
func Hash(a netip.Addr) uint32 { return jhash(a.Unmap().AsSlice(), HashSeed) }

// Pick returns the slot of n for a hash, as nft's "mod n" does. This is the kernel's reciprocal_scale, not a remainder.
// n must be at least 1.
func Pick(hash uint32, n int) int { return int(uint64(hash) * uint64(n) >> 32) }

// jhash is the kernel's jhash: Bob Jenkins' lookup3. It reads whole blocks of 12 bytes in the machine's byte order and
// the last bytes in little-endian order.
func jhash(key []byte, seed uint32) uint32 {
	a := 0xdeadbeef + uint32(len(key)) + seed
	b, c := a, a
	for len(key) > 12 {
		a += binary.NativeEndian.Uint32(key)
		b += binary.NativeEndian.Uint32(key[4:])
		c += binary.NativeEndian.Uint32(key[8:])
		a, b, c = jhashMix(a, b, c)
		key = key[12:]
	}
	if len(key) == 0 {
		return c
	}
	var last [12]byte
	copy(last[:], key)
	a += binary.LittleEndian.Uint32(last[:])
	b += binary.LittleEndian.Uint32(last[4:])
	c += binary.LittleEndian.Uint32(last[8:])
	return jhashFinal(a, b, c)
}

func jhashMix(a, b, c uint32) (uint32, uint32, uint32) {
	rot := bits.RotateLeft32
	a = (a - c) ^ rot(c, 4)
	c += b
	b = (b - a) ^ rot(a, 6)
	a += c
	c = (c - b) ^ rot(b, 8)
	b += a
	a = (a - c) ^ rot(c, 16)
	c += b
	b = (b - a) ^ rot(a, 19)
	a += c
	c = (c - b) ^ rot(b, 4)
	return a, b + a, c
}

func jhashFinal(a, b, c uint32) uint32 {
	rot := bits.RotateLeft32
	c = (c ^ b) - rot(b, 14)
	a = (a ^ c) - rot(c, 11)
	b = (b ^ a) - rot(a, 25)
	c = (c ^ b) - rot(b, 16)
	a = (a ^ c) - rot(c, 4)
	b = (b ^ a) - rot(a, 14)
	return (c ^ b) - rot(b, 24)
}
