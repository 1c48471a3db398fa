# Instances with a network of their own. Each listens on port 80 of its own address, and a free port of the node leads
# there. `muster net bridged` shows addresses, `muster alloc status` ports. Clients call ${NOMAD_HOST_ADDR_http}.

job "bridged" {
  group "web" {
    count = 2

    network {
      mode = "bridge"
      port "http" { to = 80 }

      # Only declared ports are reachable. A policy also limits outgoing traffic.
      policy {
        egress {
          default = "deny"
        }
      }
    }

    task "server" {
      driver = "native"
      config {
        command = "/usr/bin/perl"
        args = ["-MIO::Socket::INET", "-e", <<-PERL
          $| = 1;
          my $socket = IO::Socket::INET->new(LocalPort => 80, Listen => 9, ReuseAddr => 1) or die "port 80: $!";
          print "listening as $ENV{NOMAD_ALLOC_ADDR_http}, called as $ENV{NOMAD_HOST_ADDR_http}\n";
          while (my $client = $socket->accept) {
            my $line = <$client>;
            print $client "HTTP/1.0 200 OK\r\n\r\nhello from $ENV{NOMAD_ALLOC_NAME}\n";
            close $client;
          }
        PERL
        ]
      }
      resources {
        cpu    = 50
        memory = 64
      }
    }
  }
}
