package gateway

import "github.com/fairway-net/fairway/internal/api"

// ingressTLS has the certificates of the Ingresses' hosts.
type ingressTLS struct{}

func (i *ingressTLS) handshake(h Handshake, serverName string) (Handshake, bool) { return h, false }

func (l *listenerTable) sameClients(host, serverName string) bool { return true }

func (c *Compiler) ingressPorts() []Port {
	return []Port{
		{Number: c.settings.IngressHTTP, Proto: api.TCP, HTTP: true, External: 80},
		{Number: c.settings.IngressHTTPS, Proto: api.TCP, HTTP: true, TLS: true, External: 443},
	}
}

// ingressPort builds one of the Ingresses' ports.
func (c *Compiler) ingressPort(p Port) *portTable {
	l := &listener{Listener: Listener{Port: p.External}, accepted: true, bind: p.Number, proto: p.Proto, protocol: protoHTTP}
	if p.TLS {
		l.protocol = protoHTTPS
	}
	t := &portTable{Port: p}
	t.listeners.set("", &listenerTable{listener: l, hosts: c.attached.hosts[listenerKey{}]})
	return t
}

func (c *Compiler) buildIngress(o *Ingress, unit *routeUnit) {}
