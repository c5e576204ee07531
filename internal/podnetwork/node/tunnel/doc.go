// Package tunnel makes the devices that carry pods' packets between nodes: VXLAN, VXLAN inside of WireGuard, and
// WireGuard.
//
//	plan.Tunnel    ─ Bring ─→ link fairway-vxlan, addresses, FDB entries, neighbours ─ Tidy ─→ stale entries are gone
//	plan.WireGuard ─ Bring ─→ link fairway-wg, key, peers with allowed addresses    ─ Tidy ─→ stale peers are gone
//
// Bring adds before the first route by the device, Tidy removes after the last one. Both read the kernel each time,
// because other programs change these devices too, and write only the difference. A link of another program that has
// one of the names stays. The private key of WireGuard is in the kernel and on no disk.
package tunnel
